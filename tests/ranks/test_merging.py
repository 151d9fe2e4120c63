"""What ranks say is merged, what they may not use is refused, and torchrun's words are read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hotlap.attach import on_ranks, rank_report
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.children import ChildConfig
from hotlap.attach.entry import Script
from hotlap.attach.heard_child import Child, problem
from hotlap.attach.launchers import ACCELERATE, Launched, launched, ranks_wanted, split_command
from hotlap.attach.plan_choice import plan_path
from hotlap.cli.target import Target
from hotlap.diagnosis.stragglers import find_straggler, with_other_ranks
from hotlap.errors import UsageError
from hotlap.feed.memory.place import HostPlace, no_room
from hotlap.plan import Plan
from hotlap.task import GradientSums, TaskFacts
from hotlap.techniques import ORDER, FeedTarget, get
from hotlap.trace.schema import PHASES, Anchor, Trace
from hotlap.trial.protocol import Config

LAUNCHER = "a launcher"
ANCHOR = Anchor("optimizer.step", "high", {})


def rank(number: int, state: str = "applied", why: str = "so", **more: object) -> Child:
    rows = [{"name": "resident", "state": state, "why": why}]
    values = {"trains": True, "steps": 3, "techniques": rows} | more
    child = Child(LAUNCHER, number)
    vars(child).update(values)
    return child


def test_ranks_that_agree_are_one_line() -> None:
    assert rank_report.lines([rank(0), rank(1)], 0) == ["resident: applied in 2 of 2 ranks"]
    said = rank_report.lines([rank(0, "refused", "no"), rank(1, "refused", "no")], 0)
    assert said == ["resident: refused in 2 of 2 ranks: no"]


def test_a_rank_that_differs_is_named() -> None:
    (line,) = rank_report.lines([rank(0), rank(1, "no_effect", "one epoch"), rank(2)], 0)
    assert line == "resident: applied in 2 of 3 ranks; rank 1: no_effect, one epoch"
    (line,) = rank_report.lines([rank(0, "applied"), *(rank(n, "refused") for n in range(1, 9))], 0)
    assert line.startswith("resident: applied in 1 of 9 ranks; rank 1: ")
    assert line.endswith("; and 5 more")


def test_a_rank_that_says_nothing_does_not_count_as_applied() -> None:
    silent = rank(1, steps=None, techniques=[])
    (line,) = rank_report.lines([rank(0), silent], 0)
    assert line == (
        "resident: applied in 1 of 2 ranks; rank 1: unknown, it did not report at its end"
    )
    (line,) = rank_report.lines([silent], 0)
    assert line.startswith("it is not known which techniques took effect")
    # Under an empty plan there is nothing to be said.
    assert rank_report.lines([rank(0, techniques=[])], 0) == []
    # Ranks are ended with the one that died.
    assert rank_report.lines([silent], 1) == []
    failed = rank(1, failure="it broke", techniques=[])
    assert rank_report.lines([rank(0), failed], 0)[1].endswith("was not applied: it broke")


def test_a_rank_that_was_started_again_counts_once_and_one_that_never_trains_not_at_all() -> None:
    dead, idle = rank(0, steps=None, techniques=[]), rank(2, trains=False)
    assert rank_report.lines([dead, rank(1), rank(0), idle], 0) == [
        "resident: applied in 2 of 2 ranks"
    ]
    assert rank_report.lines([rank(0, is_rank=False)], 0) == []


def test_copies_are_said_once_if_the_ranks_agree() -> None:
    def holding(number: int, words: str) -> Child:
        row = {"name": "resident", "state": "applied", "why": "so", "on_ranks": words}
        return rank(number, techniques=[row])

    one = "one copy for 2 ranks"
    (line,) = rank_report.lines([holding(0, one), holding(1, one)], 0)
    assert line == f"resident: applied in 2 of 2 ranks; {one}"
    (line,) = rank_report.lines([holding(0, one), holding(1, "a copy of its own: so")], 0)
    assert line.endswith(f"; rank 0: {one}; rank 1: a copy of its own: so")


def test_what_is_said_of_each_case() -> None:
    other = Child("multiprocessing", None, is_rank=False)
    other.trains, other.steps = True, 3
    assert problem(3, 0, []) is None and problem(0, 1, []) is None
    assert "plan was not applied" in str(problem(0, 0, []))
    # A launcher's own process takes no step.
    assert problem(0, 0, [rank(0), rank(1)]) is None
    assert "ran without the plan" in str(problem(3, 0, [rank(0), other]))
    assert "a child process trains" in str(problem(0, 0, [other]))


def test_which_techniques_ranks_may_use() -> None:
    refused = {}
    for name in ORDER:
        technique = get(name)
        values = {"optimizer": {"implementation": "foreach"}, "workers": {"count": 1}}.get(name, {})
        try:
            options = technique.options(values)
        except TypeError:
            # It needs an option, which says nothing of where it acts.
            continue
        if technique.seam_of(options) in ("model", "step"):
            assert on_ranks.why_not(technique, options) is not None
        refused[name] = on_ranks.why_not(technique, options)
    assert refused["resident"] is None and refused["optimizer"] is None
    assert "changes the model" in str(refused["channels_last"])
    fused = get("optimizer").options({"implementation": "fused"})
    assert "bit-equal updates" in str(on_ranks.why_not(get("optimizer"), fused))


def test_ranks_of_one_machine_share_what_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.feed.memory.place.available_bytes", lambda: 8 * 2**20)
    assert HostPlace().free_bytes() == 4 * 2**20
    monkeypatch.setattr(HostPlace, "sharers", 4)
    assert HostPlace().free_bytes() == 2**20
    why = no_room(HostPlace(), 2 * 2**20, max_bytes=2**40, others=0)
    assert "1/8 of the free memory" in str(why)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert on_ranks.ranks_on_machine() == 4
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert on_ranks.ranks_on_machine() == 1


def test_a_child_is_told_what_the_script_was_told() -> None:
    config = Config("run", "somewhere", {"resident": {}}, ("module:NAME",))
    told = ChildConfig(config, LAUNCHER, is_rank=True, outside=(None, "1"))
    heard = ChildConfig.from_text(told.to_text())
    assert heard.config == config and heard.by == LAUNCHER and heard.is_rank


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--nproc_per_node 2 ddp.py --epochs 3", Launched("ddp.py", True)),
        ("--standalone --nproc-per-node=2 a/ddp.py", Launched("a/ddp.py", True)),
        ("-r 3 -t3 ddp.py", Launched("ddp.py", True)),
        ("--nnodes 1 -m pkg.train x.py", Launched("pkg.train", False)),
        ("--no_python sh run.sh", Launched("sh", False)),
        ("--nproc_per_node 2", None),
    ],
)
def test_the_script_among_the_words_of_torchrun(words: str, found: Launched | None) -> None:
    started = launched(words.split())
    assert (None if started is None else started._replace(words=())) == found


def test_torchrun_is_the_module_of_the_same_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = Target.parse(["torchrun", "--nproc_per_node", "2", "ddp.py"])
    assert target.module == "torch.distributed.run" and target.args[-1] == "ddp.py"
    with pytest.raises(UsageError, match=r"'ddp\.py' was not found"):
        target.resolve()
    with pytest.raises(UsageError, match="was given no script"):
        Target.parse(["torchrun", "--standalone"]).resolve()
    Path("ddp.py").touch()
    assert target.resolve() is target
    # A file of that name is the script that was meant.
    Path("torchrun").touch()
    assert Target.parse(["torchrun"]).script == "torchrun"


def test_a_plan_for_ranks_has_a_file_of_its_own(tmp_path: Path) -> None:
    ranks = Script(module="torch.distributed.run", args=("sub/ddp.py",), cwd=str(tmp_path))
    assert plan_path(ranks) == tmp_path / "sub/ddp.ranks.plan.toml"
    ranks = Script(module="torch.distributed.run", args=("-m", "pkg.ddp"), cwd=str(tmp_path))
    assert plan_path(ranks) == tmp_path / "pkg.ddp.ranks.plan.toml"
    assert plan_path(Script(path="ddp.py", cwd=str(tmp_path))) == tmp_path / "ddp.plan.toml"


def test_a_rank_takes_its_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostPlace, "sharers", 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    loader = DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4)
    PlanInProcess(Plan({"resident": {}})).iterator_wanted(loader)
    assert HostPlace.sharers == 1
    PlanInProcess(Plan({"resident": {}}), is_rank=True).iterator_wanted(loader)
    assert HostPlace.sharers == 4


def test_a_batch_that_was_completed_is_counted_as_such() -> None:
    data = TensorDataset(torch.arange(8.0))
    technique = get("resident")
    target = FeedTarget(DataLoader(data, batch_size=4), size=8)
    technique.apply(target, technique.options({}))
    rows = target.notes["resident"]

    def read(indices: Sequence[int]) -> list[torch.Tensor]:
        return [torch.stack([data[index][0] for index in indices])]

    # As a shuffled DistributedSampler deals a data set: other halves in each epoch.
    for indices in ([0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 2, 4]):
        (batch,) = rows.bind(data, read)(indices)
        assert batch.tolist() == [float(index) for index in indices]
    assert (rows.served, rows.read_batches, rows.completed) == (2, 2, 1)
    why = technique.proof(target, technique.options({})).why
    assert "2 read from the dataset" in why
    assert why.endswith("as they are first read (1 of both: only their missing samples)")


def paces(**more: float) -> dict[int, dict[str, object]]:
    phases = {"data": 2.0, "forward": 4.0, "backward": 4.0, "optimizer": 0.0} | more
    return {1: {"phases": {"other": 0.0} | phases, "exposed_ms": 0.0}}


def test_the_slowest_rank_is_named_by_its_own_work() -> None:
    facts = TaskFacts(ranks=2, exposed_ms=3.0)
    # 10 ms a step, of which the first rank waits 3 ms at the end of its backward.
    row = {"data": 2.0, "forward": 4.0, "backward": 4.0}
    steps = [tuple(row.get(name, 0.0) for name in PHASES)] * 9
    trace = Trace(steps, [0], facts, Anchor("optimizer.step", "high", {}), 1.0)
    said = str(find_straggler(trace, paces()))
    assert said.startswith("rank 1 is the slowest: its own work takes 10.00 ms a step")
    assert "of the others 7.00 ms" in said and "backward: 4.00 instead of 1.00 ms" in said
    said = str(find_straggler(trace, paces(data=5.0, backward=1.0)))
    assert "is in data: 5.00 instead of 2.00 ms" in said
    assert find_straggler(trace, paces(backward=1.5)) is None
    assert find_straggler(trace, {}) is None
    assert str(find_straggler(trace, paces(backward=0.0, data=0.0))).startswith("rank 0 is")


def test_ranks_that_hotlap_did_not_start_are_counted() -> None:
    assert rank_report.lines([rank(0, ranks=2), rank(1, ranks=2)], 0) == [
        "resident: applied in 2 of 2 ranks"
    ]
    said = rank_report.lines([rank(0, ranks=2)], 0)
    assert said[-1].startswith("1 of 2 ranks are known to this `hotlap run`")
    assert len(rank_report.lines([rank(0, ranks=2)], 1)) == 1


def test_parameters_that_another_rank_leaves_unused_count() -> None:
    sums = GradientSums(per_step=1.0, ms=1.0, searches=True, looks=8, unused_bytes=4)
    given = Trace([(1.0,) * len(PHASES)], [0], TaskFacts(ranks=2, sums=sums), ANCHOR, 1.0)
    other = {1: {"unused_bytes": 80}, 2: {"unused_bytes": 0}}
    for paces, most in ((other, 80), ({}, 4)):
        found = with_other_ranks(given, paces).facts.sums
        assert found is not None and found.unused_bytes == most
    without = replace(given, facts=TaskFacts(ranks=2))
    assert with_other_ranks(without, other) is without


def test_the_script_among_the_words_of_accelerate() -> None:
    words = ["launch", "--cpu", "--num_processes", "2", "-m", "pkg.train", "--epochs", "3"]
    command = split_command(["accelerate", *words])
    assert command is not None and command == (ACCELERATE, tuple(words[1:]))
    started = launched(command[1], ACCELERATE)
    assert started == Launched("pkg.train", False, ("-m", "pkg.train", "--epochs", "3"))
    assert ranks_wanted(command[1]) == 2 and ranks_wanted(["train.py"]) == 1
    # The other launcher has no such flags.
    assert launched(["--cpu", "train.py", "x"], ACCELERATE) == Launched(
        "train.py", True, ("train.py", "x")
    )
    assert launched(["--cpu", "train.py", "x"]) == Launched("x", True, ("x",))
    assert split_command(["accelerate", "config"]) is None


def test_the_command_accelerate_launch_is_the_module_of_the_same_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = Target.parse(["accelerate", "launch", "--cpu", "train.py"])
    assert target.module == ACCELERATE and target.args == ("--cpu", "train.py")
    script = Script(module=ACCELERATE, args=target.args, cwd=str(tmp_path))
    assert plan_path(script) == tmp_path / "train.ranks.plan.toml"
