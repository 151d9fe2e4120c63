"""Ranks that share state, gradients or parameters learn what one process learns."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from hotlap.checkpoint.read import read
from hotlap.distributed.owners import Owners, deal
from hotlap.distributed.ranks import Ranks
from hotlap.distributed.reduce import Reduce
from hotlap.errors import PlanError
from hotlap.plan import Plan
from hotlap.techniques import ModelTarget, Refusal, StepTarget, check, get
from tests.distributed.sharded import CASES, EXACT, HYBRID, LEVELS, model, outcome

ROOT = Path(__file__).parents[2]
RUNNER = (
    "import sys; from hotlap.distributed.launch import launch; "
    "sys.exit(launch([sys.executable, '-m', 'tests.distributed.sharded', sys.argv[2]], "
    "int(sys.argv[1])))"
)


def on_ranks(world: int, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(world), json.dumps(runs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def at_once(world: int, cases: Any, shardings: Any) -> dict[tuple[str, int], dict[str, Any]]:
    """Run every case under every sharding on some ranks; return them by case and number."""
    runs = [{"case": case, "sharding": each} for each in shardings for case in cases]
    found = iter(on_ranks(world, runs))
    return {(case, n): next(found) for n, _ in enumerate(shardings) for case in cases}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {case: outcome(case, None) for case in (*EXACT, *ORDINARY)}
    finally:
        torch.set_num_threads(threads)


ORDINARY = ("adam, clipped", "momentum, clipped", "momentum")


def check_same(found: dict[str, Any], alone: dict[str, Any]) -> None:
    assert found["losses"] == alone["losses"]
    assert found["weights"] == alone["weights"]
    assert found["techniques"]["sharding"][0] == "applied", found["techniques"]
    # The model is handed back as it was made.
    assert found["classes"] == alone["classes"]
    assert found["hooks"] == alone["hooks"]
    for mine, theirs in zip(found["held_out"], alone["held_out"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6)
    assert len(set(alone["losses"])) > 1


def test_the_optimizers_state_is_shared_and_no_bit_differs(alone: Any) -> None:
    cases = ("counts", "adam, clipped", "momentum, clipped")
    done = at_once(2, cases, [{"level": "optimizer"}])
    for (case, _), found in done.items():
        check_same(found, alone[case])
    (said,) = done["adam, clipped", 0]["said"]
    assert said.startswith("sharding: the first rank will hold 0.0 MiB between steps: parameters")


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_learn_the_same_where_the_arithmetic_is_exact(world: int, alone: Any) -> None:
    # A mean over a third of a step is rounded, and of three ranks other ones use the layer.
    cases = [case for case in EXACT if world == 2 or case not in ("mean", *SPLIT)]
    shardings = [{"level": level} for level in LEVELS]
    for (case, _), found in at_once(world, cases, shardings).items():
        check_same(found, alone[case])


SPLIT = ("a layer that some ranks use",)


@pytest.mark.slow
def test_groups_of_ranks_that_hold_a_model_each_learn_the_same(alone: Any) -> None:
    cases = [case for case in EXACT if case not in ("mean", *SPLIT)]
    shardings = [HYBRID, {"level": "gradients", "replicas": 2}]
    for (case, _), found in at_once(4, cases, shardings).items():
        check_same(found, alone[case])


@pytest.mark.slow
def test_ordinary_floats_agree_up_to_rounding(alone: Any) -> None:
    shardings = [{"level": level} for level in LEVELS]
    for (case, number), found in at_once(2, ORDINARY, shardings).items():
        if LEVELS[number] == "optimizer":
            check_same(found, alone[case])
            continue
        assert found["losses"] == pytest.approx(alone[case]["losses"], rel=1e-6)
        for name, weight in alone[case]["weights"].items():
            mine, theirs = torch.tensor(found["weights"][name]), torch.tensor(weight)
            assert float((mine - theirs).abs().max()) < 1e-6, (case, name)


@pytest.mark.slow
def test_blocks_that_run_twice_are_gathered_for_both() -> None:
    run = {"case": "counts", "also": {"recompute": {}}}
    alone = outcome("counts", None)
    runs = [{**run, "sharding": {"level": level}} for level in LEVELS]
    for found in on_ranks(2, runs):
        check_same(found, alone)
        assert found["techniques"]["recompute"][0] == "applied", found["techniques"]


@pytest.mark.slow
def test_parameters_may_be_gathered_in_a_narrow_format(alone: Any) -> None:
    case, sharding = "adam, clipped", {"level": "parameters", "dtype": "bf16"}
    (found,) = at_once(2, [case], [sharding]).values()
    assert found["losses"] != alone[case]["losses"]
    assert found["losses"] == pytest.approx(alone[case]["losses"], rel=0.02)
    for name, weight in alone[case]["weights"].items():
        mine, theirs = torch.tensor(found["weights"][name]), torch.tensor(weight)
        assert float((mine - theirs).abs().max()) < 0.1, name


@pytest.mark.slow
def test_one_rank_that_is_not_finite_is_skipped_by_all() -> None:
    shardings = [{"level": level} for level in LEVELS]
    for found in at_once(2, ["not finite on one rank"], shardings).values():
        assert found["skipped"] == 1
        weights = [torch.tensor(weight) for weight in found["weights"].values()]
        assert all(bool(torch.isfinite(weight).all()) for weight in weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((1, None), (2, {"level": "parameters"})),
        ((2, {"level": "parameters"}), (1, None)),
        ((2, {"level": "parameters"}), (4, {"level": "parameters"})),
        ((2, {"level": "optimizer"}), (3, {"level": "gradients"})),
        ((4, HYBRID), (2, None)),
    ],
    ids=str,
)
def test_a_run_goes_on_at_another_level_and_with_other_ranks(
    first: Any, then: Any, alone: Any, tmp_path: Path
) -> None:
    cases = ("counts", "adam, clipped")
    done: list[dict[str, Any]] = []
    for (world, sharding), epochs in ((first, 1), (then, None)):
        run = {"sharding": sharding, "epochs": epochs, "resume": "auto"}
        runs = [{**run, "case": case, "run_dir": str(tmp_path / case)} for case in cases]
        done = on_ranks(world, runs) if world > 1 else [outcome(**each) for each in runs]
    for case, found in zip(cases, done, strict=True):
        assert len(found["losses"]) == len(alone[case]["losses"]) - 1
        for name, weight in alone[case]["weights"].items():
            mine, theirs = torch.tensor(found["weights"][name]), torch.tensor(weight)
            # Of Adam, state that is lost or of another parameter changes far more than rounding.
            allowed = 0.0 if case == "counts" else 2e-5
            assert float((mine - theirs).abs().max()) <= allowed, (case, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("short of memory", "step 3 ran out of memory on rank 1"),
        ("a block that some ranks use", "but the first batch reached 'the end of the model'"),
        ("a block that one rank skips", "but other ranks call another block"),
        ("beside the model", "called the module '1' directly"),
        ("a short stream", "step 1 has 1 samples for 2 ranks"),
        ("a head beside the model", "used a parameter outside of a call of the model"),
        ("adafactor", "optimizer() returned Adafactor"),
    ],
)
def test_what_ranks_cannot_do_together_ends_with_a_reason(case: str, words: str) -> None:
    run = {"case": case, "sharding": {"level": "parameters"}}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, "2", json.dumps([run])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.slow
def test_a_step_that_runs_out_of_memory_is_taken_again_where_the_state_is_shared(
    alone: Any,
) -> None:
    (found,) = on_ranks(2, [{"case": "short of memory", "sharding": {"level": "optimizer"}}])
    assert found["retries"] == 1
    assert found["weights"] == alone["counts"]["weights"]


def test_parameters_are_dealt_by_their_sizes() -> None:
    assert deal([4, 1, 3, 2], 2) == [0, 0, 1, 1]
    assert deal([5, 5, 5], 4) == [0, 1, 2]
    sizes = [(7 * n) % 31 + 1 for n in range(40)]
    ranks = deal(sizes, 3)
    held = [sum(s for s, r in zip(sizes, ranks, strict=True) if r == rank) for rank in range(3)]
    assert max(held) - min(held) <= min(sizes) + 1


def test_state_that_an_optimizer_begins_with_is_kept_by_its_owner_only() -> None:
    made = torch.optim.Adagrad(model().parameters())
    owners = Owners(made, Reduce(Ranks(1, 2)))
    parameters = [each for group in made.param_groups for each in group["params"]]
    kept = [owners.keeps(parameter) for parameter in parameters]
    assert [parameter in made.state for parameter in parameters] == kept
    assert 0 < sum(kept) < len(kept)


def step_target(optimizer: Any, world: int = 2) -> StepTarget:
    return StepTarget(model(), optimizer, "cpu", reduce=Reduce(Ranks(0, world)))


class OfAll(torch.optim.Optimizer):
    """Steps by the norm of all gradients, as LAMB-like optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})


def test_what_cannot_be_shared_is_refused_with_a_reason() -> None:
    technique = get("sharding")
    state = technique.options({"level": "optimizer"})
    made = torch.optim.Adam(model().parameters())
    with pytest.raises(Refusal, match="the run has one rank"):
        technique.apply(step_target(made, world=1), state)
    with pytest.raises(Refusal, match="may need all parameters to update one of them"):
        technique.apply(step_target(OfAll(model().parameters())), state)
    refused = {
        "3 groups of two or more .* 4 ranks cannot form.*replicas=1 or 2": (
            {"replicas": 3},
            model(),
        ),
        "4 groups of two or more .* 4 ranks cannot form": ({"replicas": 4}, model()),
        "names the class `Missing`": ({"wrap": "Missing"}, model()),
        "'scale' is a scalar": ({}, scaled()),
        "is shared by the module '0' and the rest of the model": ({}, tied()),
        "'weight' is not contiguous": ({}, channels_last()),
    }
    for words, (values, module) in refused.items():
        options = technique.options({"level": "parameters", **values})
        with pytest.raises(Refusal, match=words):
            technique.apply(ModelTarget(module, [], reduce=Reduce(Ranks(0, 4))), options)
        assert all(type(each) is torch.nn.Parameter for each in module.parameters())


def channels_last() -> Any:
    module: Any = torch.nn.Conv2d(3, 4, 2)
    return module.to(memory_format=torch.channels_last)


def scaled() -> Any:
    module: Any = model()
    module.scale = torch.nn.Parameter(torch.tensor(1.0))
    return module


def tied() -> Any:
    module: Any = model()
    module.tied = torch.nn.Linear(4, 4)
    module.tied.weight = module[0].inner.weight
    return module


@pytest.mark.parametrize(
    "values",
    [
        {"level": "weights"},
        {},
        {"level": "parameters", "replicas": 0},
        {"level": "optimizer", "replicas": 2},
        {"level": "optimizer", "dtype": "bf16"},
        {"level": "parameters", "least": -1},
    ],
)
def test_options_that_cannot_be_are_a_mistake_in_the_plan(values: Any) -> None:
    with pytest.raises(PlanError):
        check(Plan({"sharding": values}))


def test_blocks_are_those_that_repeat_or_are_named() -> None:
    from hotlap.techniques.sharding import Options, blocks_of

    module = torch.nn.Sequential(model(), torch.nn.Linear(4, 2))
    found = {
        (): ["0.0", "0.1"],
        ("wrap", "Linear"): ["0.0.inner", "0.1.inner", "0.2", "1"],
        ("least", 21): [],
    }
    for given, names in found.items():
        options = Options("parameters", **({given[0]: given[1]} if given else {}))
        assert list(blocks_of(module, options)) == names


def test_every_case_is_run_by_a_test() -> None:
    others = {"not finite on one rank", "short of memory", "a block that some ranks use"}
    others |= {
        "a block that one rank skips",
        "a short stream",
        "beside the model",
        "a head beside the model",
        "adafactor",
    }
    assert {*EXACT, *ORDINARY, *others} == CASES.keys()


def test_what_a_rank_holds_is_predicted_by_level() -> None:
    from hotlap.engine.memory.rank_bytes import Held, Sized, predict

    # Two parameters, Adam: 8 bytes a number, and 4 for the count of steps. One is frozen.
    sizes = [Sized((5, 3), 4, True, 8, 4), Sized((4,), 4, True, 8, 4), Sized((2,), 4, False, 0, 0)]
    options = get("sharding").options
    expected = {
        (None, 0): Held(84, 76, 160),
        ("optimizer", 0): Held(84, 76, 124),
        ("optimizer", 1): Held(84, 76, 36),
        # Shares of 3 and 2 of 5 rows, filled up to 3.
        ("parameters", 0): Held(48, 44, 96),
        ("parameters", 1): Held(48, 44, 72),
    }
    for (level, rank), held in expected.items():
        chosen = None if level is None else options({"level": level})
        assert predict(sizes, chosen, 2, rank) == held, (level, rank)
    assert predict(sizes, options({"level": "parameters"}), 2) == Held(48, 44, 96)
    hybrid = options({"level": "parameters", "replicas": 2})
    assert predict(sizes, hybrid, 4, 2) == predict(sizes, options({"level": "parameters"}), 2, 0)


@pytest.mark.slow
def test_ranks_hold_what_was_predicted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "sharding", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["figures"]["most off"] < 0.05
    totals = [int(row["total measured"].replace(",", "")) for row in found["rows"]]
    # Nothing shared; state; all of it: of four parts, two are state.
    assert totals[1] == pytest.approx(0.75 * totals[0], rel=0.1)
    assert totals[2] == pytest.approx(0.5 * totals[0], rel=0.1)
    assert totals[3] == totals[2]
    assert totals[4] == pytest.approx(0.25 * totals[0], rel=0.1)
    assert totals[5] == totals[3]


@pytest.mark.slow
def test_an_estimate_says_what_each_rank_will_hold() -> None:
    from hotlap.engine.memory.estimate import estimate

    plan = Plan({"sharding": {"level": "parameters"}})
    found = estimate(CASES["adam, clipped"](), plan, device="cpu", ranks=2, find_largest=False)
    alone = estimate(CASES["adam, clipped"](), device="cpu", ranks=2, find_largest=False)
    assert found.held is not None
    assert alone.held is not None
    assert found.held.total == pytest.approx(0.5 * alone.held.total, rel=0.02)
    assert found.to_json()["held_bytes"]["gradients"] == found.held.gradients


@pytest.mark.slow
def test_a_plan_file_shares_a_recipes_model_and_its_checkpoint_is_read_as_that_of_one_device(
    tmp_path: Path,
) -> None:
    saved: list[bytes] = []
    in_parts: dict[str, set[str]] = {}
    for level in ("", *LEVELS):
        plan, run_dir = tmp_path / "plan.toml", tmp_path / f"run {level}"
        table = f'[techniques.sharding]\nlevel = "{level}"\n' if level else ""
        plan.write_text(f"schema = 1\n{table}")
        command = [sys.executable, "-m", "hotlap", "train", "tests/distributed/recipe.py"]
        command += ["--plan", str(plan), "--run-dir", str(run_dir), "--device", "cpu"]
        command += ["--devices", "2"] if level else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        newest = sorted((run_dir / "ckpt").glob("step-*"))[-1]
        saved.append(save({**read(newest).tensors["model"]}))
        in_parts[level] = {path.name.partition("-")[0] for path in newest.glob("*-of-00002.*")}
    assert len(set(saved)) == 1
    # The recipe's optimizer has no state.
    assert in_parts == {
        "": set(),
        "optimizer": set(),
        "gradients": {"model"},
        "parameters": {"model"},
    }
