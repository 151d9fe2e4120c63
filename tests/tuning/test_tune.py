"""Tuning: what is tried, how the budget is shared, and one real tuning from end to end."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.host.facts import Host
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.techniques import ORDER, Numerics, registry
from hotlap.trace.schema import Anchor, Trace
from hotlap.tuning.budget import Budget
from hotlap.tuning.candidates import Candidate, combinations, nominate
from hotlap.tuning.result import OUTCOMES
from hotlap.tuning.technique_notes import STATES
from hotlap.tuning.time_plan import plan_time

TINY = Path(__file__).parents[1] / "tiny.py"
LOADER = LoaderFacts("d", 100, 10, 0, True, True, True, "a.py:3", "a.py:9", 10)
FACTS = TaskFacts(
    threads=2,
    layers={"Linear": 2},
    loaders=(LOADER,),
    optimizers=(OptimizerFacts("torch.optim.adam.Adam", "default", 4, 99, "a.py:5"),),
    steps_per_epoch=100,
    planned_steps=1000,
)
HOST = Host(cpu="x", cores=2)


def names(found: list[Candidate]) -> set[str]:
    return {candidate.name for candidate in found}


def test_only_what_can_serve_is_tried_and_the_rest_says_why() -> None:
    found, refused = nominate(FACTS, HOST, registry(), Numerics.ROUNDING)
    assert "resident" in names(found)
    assert "optimizer(implementation=fused)" in names(found)
    assert refused["channels_last"].startswith("the model has no 2-D convolution")


def test_memory_is_kept_only_where_steps_are_handed_pages() -> None:
    found, refused = nominate(FACTS, HOST, registry(), Numerics.EXACT)
    assert "host_allocator" not in names(found)
    assert "so it can save little" in refused["host_allocator"]
    linux = replace(HOST, platform="linux")
    for faults, share, is_tried in ((5e3, 0.1, True), (5e3, 0.01, False), (50.0, 0.1, False)):
        given = replace(FACTS, page_faults=faults, system_share=share)
        found, _ = nominate(given, linux, registry(), Numerics.EXACT)
        assert ("host_allocator" in names(found)) is is_tried


def test_what_nobody_would_try_here_says_what_is_missing() -> None:
    _, refused = nominate(FACTS, HOST, registry(), Numerics.STREAM, own_step=True)
    assert refused["micro_batch"] == (
        "no batch of more than 16 samples was seen, which could be split"
    )
    for name in ("allocator", "cudnn_benchmark", "cuda_graph"):
        assert "Train on a CUDA GPU" in refused[name].replace("train on", "Train on"), name


def test_what_is_weaker_than_accepted_is_not_tried() -> None:
    found, refused = nominate(FACTS, HOST, registry(), Numerics.EXACT)
    assert all(candidate.numerics is Numerics.EXACT for candidate in found)
    assert "only `exact` or better is accepted" in refused["threads"]


def test_what_acts_on_the_step_is_tried_only_where_the_step_is_ours() -> None:
    weakest = Numerics.STREAM
    _, refused = nominate(FACTS, HOST, registry(), weakest)
    assert "hotlap train" in refused["master_weights"]
    found, refused = nominate(FACTS, HOST, registry(), weakest, own_step=True)
    assert {"master_weights", "autocast(dtype=bf16)"} <= names(found)
    assert "master_weights" not in refused
    exact, refused = nominate(FACTS, HOST, registry(), Numerics.ROUNDING, own_step=True)
    assert "master_weights" not in names(exact)
    assert "only `rounding` or better is accepted" in refused["master_weights"]


def test_each_tier_has_its_own_combination() -> None:
    resident = Candidate("resident", {}, Numerics.EXACT)
    fused = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
    narrow = Candidate("master_weights", {}, Numerics.PRECISION)
    singles = {c: Ratio(1.5, 1.4, 1.6, 8) for c in (resident, fused, narrow)}
    plans = list(combinations(singles, [resident, fused, narrow], limit=9).values())
    assert [sorted(plan.techniques) for plan in plans[:3]] == [
        ["resident"],
        ["optimizer", "resident"],
        ["master_weights", "optimizer", "resident"],
    ]


def test_combinations_hold_the_best_of_each_tier_first_and_no_pair_that_excludes_itself() -> None:
    resident = Candidate("resident", {}, Numerics.EXACT, excludes=("workers",))
    workers = Candidate("workers", {"count": 1}, Numerics.EXACT)
    fused = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
    threads = Candidate("threads", {"count": 1}, Numerics.ROUNDING)
    ratios = {resident: 2.0, workers: 1.5, fused: 1.3, threads: 0.9}
    singles = {c: Ratio(r, r - 0.1, r + 0.1, 8) for c, r in ratios.items()}
    plans = combinations(singles, [resident, workers, fused], limit=9)
    first, second, *others = plans.values()
    assert first == Plan({"resident": {}})
    assert second == Plan({"resident": {}, "optimizer": {"implementation": "fused"}})
    assert any("threads" in plan.techniques for plan in others)
    assert not any({"resident", "workers"} <= set(plan.techniques) for plan in plans.values())


def trace(step_ms: float, steps: int) -> Trace:
    row = (step_ms / 2, 0.0, step_ms / 8, step_ms / 8, step_ms / 8, step_ms / 8)
    return Trace([row] * steps, (0,), FACTS, Anchor("optimizer.step", "high", {}), setup_s=2.0)


@pytest.mark.parametrize(("step_ms", "fills"), [(3.0, False), (400.0, True)])
def test_the_horizon_passes_an_epoch_where_that_fits(step_ms: float, fills: bool) -> None:
    made = plan_time(trace(step_ms, 50), Budget(150))
    assert made.fill_ahead is fills
    assert (made.horizon > 100) is not fills
    assert made.horizon >= 64
    assert made.first_until < made.second_until


def test_processes_that_start_one_by_one_are_given_time_for_it() -> None:
    seen = trace(3.0, 50)
    two_at_a_time = plan_time(seen, Budget(150))
    one_by_one = plan_time(replace(seen, evaluates_first=True), Budget(150))
    assert one_by_one.arm_s > two_at_a_time.arm_s + 1.0
    assert one_by_one.confirm_s > two_at_a_time.confirm_s + 1.0


def test_a_proof_follows_no_more_steps_than_were_asked_for() -> None:
    assert plan_time(trace(3.0, 50), Budget(150)).horizon > 100
    made = plan_time(trace(3.0, 50), Budget(150), most_steps=80)
    assert made.horizon == 80 and made.fill_ahead


def test_what_acts_on_the_larger_part_of_a_step_is_tried_first_and_every_technique_once() -> None:
    facts = replace(FACTS, layers={"Conv2d": 2, "Linear": 2})
    convolutions = {"data": 2.0, "forward": 5.0, "backward": 9.0, "optimizer": 0.4, "other": 0.1}
    names = [c.name for c in ordered(facts, convolutions)]
    assert names[:2] == ["channels_last", "resident"]
    assert {name.partition("(")[0] for name in names[:4]} == {
        "channels_last",
        "resident",
        "optimizer",
        "threads",
    }
    decoding = {"data": 9.0, "forward": 1.0, "backward": 2.0, "optimizer": 1.0, "other": 0.1}
    assert next(c.name for c in ordered(facts, decoding)) == "resident"


def ordered(facts: TaskFacts, phases: dict[str, float]) -> list[Candidate]:
    return nominate(facts, HOST, registry(), Numerics.ROUNDING, phases=phases)[0]


def test_the_budget_says_what_it_could_not_afford() -> None:
    budget = Budget(10)
    assert budget.affords("little", 3)
    assert not budget.affords("much", 300)
    assert budget.not_reached[0].startswith("much")


def tune(tmp_path: Path, *argv: str) -> tuple[dict, subprocess.CompletedProcess]:
    fixed = (
        f"-m hotlap tune {TINY} --epochs 3000 --budget 45s --out {tmp_path / 'plan.toml'} --json"
    )
    done = subprocess.run(
        [sys.executable, *fixed.split(), *argv],
        capture_output=True,
        text=True,
        cwd=TINY.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done


@pytest.mark.slow
def test_a_real_tuning_says_all_that_it_promises(tmp_path: Path) -> None:
    found, _ = tune(tmp_path)
    assert found["schema"] == 1
    assert found["seconds"] < 45 + 10
    assert found["verdict"]["tier"] in ("exact", "rounding")
    assert set(found["baseline_ms"]) == {"median", "low", "high", "n"}
    assert found["whole_run"]["planned_steps"] == 48000
    states = {row["name"]: row for row in found["techniques"]}
    assert set(states) == set(ORDER)
    assert "hotlap train" in states["master_weights"]["why"]
    assert all(row["state"] in STATES for row in states.values())
    assert all(row["why"] for row in states.values())
    for rung in found["ladder"]:
        assert rung["speedup"]["low"] > 1 + rung["noise_floor"]
    assert all(states[name]["state"] == "applied" for name in found["plan"])
    assert found["outcome"] in OUTCOMES
    if found["outcome"] != "gain":
        assert found["plan_file"] is None
        assert found["reason"]
        return
    written = PlanFile.read(found["plan_file"])
    assert written.plan == Plan(found["plan"])
    assert written.is_as_measured
