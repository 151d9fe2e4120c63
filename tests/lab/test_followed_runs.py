"""The plain run and the plan's at the same time, and when the plain run has to be run once more."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab import followed_runs
from hotlap.lab.followed_runs import FollowedRuns
from hotlap.lab.proving import Prover
from hotlap.plan import Plan
from hotlap.techniques import registry
from hotlap.trial.gradient_rows import RowWriter
from tests.lab.records import STEPS, record

FUSED = Plan({"optimizer": {"implementation": "fused"}})
Answer = Callable[[Plan], dict[str, Any]]


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    return SimpleNamespace(
        subject=Script(path="x.py"), exchange=tmp_path, inject_seed=None, trials=[]
    )


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[Plan]:
    """Let runs end with the records that `answer` gives; return the plans that are run."""
    followed: list[Plan] = []

    def run(lab: Any, plan: Plan, **options: Any) -> Any:
        del lab, options
        followed.append(plan)
        return {"record": answer(plan), "techniques": []}

    monkeypatch.setattr(followed_runs, "run_to_report", run)
    return followed


def other_draws(name: str) -> dict[str, Any]:
    other = record()["followed"]
    for row in other["updates"][STEPS // 2 :]:
        row["random"] = [*row["random"][:2], name]
    return {"followed": other}


ROUNDED: dict[str, Any] = {"loss_digests": [7], "weights": ["x"], "untrained": ["x"]}
LEARNS_OTHERWISE: dict[str, dict[str, Any]] = {
    "batches": {"batches": ["x"] * STEPS},
    "inputs": {"inputs": ["x"] * STEPS},
    "start": {"start": {"0.weight": [9, True], "0.bias": [8, True]}},
    "evaluation": {"evaluated": []},
    "averages": {"averages": []},
    "buffers in between": {"untrained_moved": {"1.scale": [3]}},
    "draws": other_draws("n"),
}


@pytest.mark.parametrize("at_once", [False, True, None])
@pytest.mark.parametrize(
    ("claims_exact", "changed", "plain_runs"),
    [
        # A buffer may hold the time: what is equal otherwise is `exact` without it.
        (False, {"untrained": ["x"]}, 2),
        (False, {"without_gradients": [[-1, 3, "in", "out"]]}, 2),
        # A save may hold the time as well, but other tensors are to be explained.
        (False, {"saves": [[30, 2, "saved", "others"]]}, 1),
        (False, {"saves": [[30, 2, "others", "names"]]}, 2),
        (True, {}, 1),
        (False, {}, 1),
        (False, ROUNDED, 1),
        *((True, {key: value}, 2) for key, value in ROUNDED.items()),
        *((exact, each, 2) for exact in (False, True) for each in LEARNS_OTHERWISE.values()),
    ],
)
def test_a_plans_run_may_show_that_the_plain_one_repeats_itself(
    claims_exact: bool,
    changed: dict[str, Any],
    plain_runs: int,
    at_once: bool | None,
    lab: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = answer_with(monkeypatch, lambda plan: record() | (changed if plan else {}))
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=at_once)
    runs.run_plain()
    runs.follow(FUSED, claims_exact=claims_exact)
    assert followed.count(Plan()) == plain_runs and runs.differs is None
    # Whatever comes later can rest on it, and compares once at most.
    runs.follow(FUSED, claims_exact=claims_exact)
    assert followed.count(Plan()) == plain_runs


@pytest.mark.parametrize("at_once", [False, True])
def test_a_plain_run_that_does_not_repeat_itself_is_seeded_and_the_plans_with_it(
    at_once: bool, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(99))

    def answer(plan: Plan) -> dict[str, Any]:
        del plan
        if lab.inject_seed is not None:
            return record()
        return record() | {"batches": [f"{next(numbers)}"] * STEPS}

    followed = answer_with(monkeypatch, answer)
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=at_once)
    runs.run_plain()
    assert runs.follow(FUSED) == record() == runs.plain
    assert runs.differs is None and lab.inject_seed == 0
    assert [followed.count(plan) for plan in (Plan(), FUSED)] == [3, 2]


def test_what_differs_with_a_seed_too_is_said_once(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(99))
    followed = answer_with(
        monkeypatch, lambda _: record() | {"batches": [f"{next(numbers)}"] * STEPS}
    )
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1)
    runs.run_plain()
    runs.follow(FUSED)
    runs.follow(FUSED)
    assert runs.differs == "batches (first at 1)"
    assert followed.count(Plan()) == 4


@pytest.mark.parametrize("at_once", [False, True])
def test_what_one_run_keeps_is_not_written_over_by_another(
    at_once: bool, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(lab: Any, plan: Plan, *, folder: str, **options: Any) -> Any:
        del lab, options
        file = Path(folder, "evaluation-0.safetensors")
        file.write_text(str(plan))
        draws = other_draws("n") if plan else {}
        return {"record": record() | draws | {"evaluations": [str(file)]}, "techniques": []}

    monkeypatch.setattr(followed_runs, "run_to_report", run)
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=at_once)
    runs.run_plain()
    # It draws otherwise, so the plain script is run once more, after the plan.
    (kept,) = runs.follow(FUSED)["evaluations"]
    assert Path(kept).read_text() == str(FUSED)


@pytest.mark.parametrize("at_once", [False, True])
def test_the_plans_run_goes_on_beside_the_plain_one(
    at_once: bool, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def answer(plan: Plan) -> dict[str, Any]:
        if plan:
            began.set()
        else:
            seen.append(began.wait(10 if at_once else 0.1))
        return record()

    seen: list[bool] = []
    answer_with(monkeypatch, answer)
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=at_once)
    runs.run_plain()
    runs.follow(FUSED)
    assert seen == [at_once]


@pytest.mark.parametrize("free", [10**9, 10**3])
def test_without_memory_for_both_the_plans_run_waits_for_the_plain_ones_end(
    free: int, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, over = threading.Event(), threading.Event()

    def answer(plan: Plan) -> dict[str, Any]:
        if plan:
            began.set()
            seen.append(over.is_set())
            return record()
        # It trains from here on.
        writer = RowWriter(lab.exchange / "gradients-1")
        for _ in range(2):
            writer.write(numpy.zeros(3))
        began.wait(0.3)
        over.set()
        return record()

    seen: list[bool] = []
    answer_with(monkeypatch, answer)
    monkeypatch.setattr(followed_runs, "available_bytes", lambda: free)
    lab.trials = [SimpleNamespace(is_alive=True, held_bytes=lambda limit_of: 10**6)]
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=None)
    runs.run_plain()
    runs.follow(FUSED)
    assert seen == [free < 10**6]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("fails", ["plain", "both"])
def test_what_the_plain_run_failed_for_is_said_first(
    fails: str, at_once: bool, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(plan: Plan) -> dict[str, Any]:
        if not plan:
            raise TrialError("the plain run crashed", reason="crashed")
        if fails == "both":
            raise TrialError("the plan's run crashed", reason="crashed")
        return record()

    answer_with(monkeypatch, answer)
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=at_once)
    with pytest.raises(TrialError, match="the plain run crashed"):
        runs.run_plain()
        runs.follow(FUSED)


def test_a_plan_is_not_followed_on_its_own_once_the_plain_run_has_failed(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = threading.Event(), threading.Event()

    def end_with(reason: str, why: str) -> None:
        assert (reason, why) == ("ended_early", "was ended: the plain run had failed")
        ended.set()

    def answer(plan: Plan) -> dict[str, Any]:
        if not plan:
            assert began.wait(10)
            raise TrialError("the plain run crashed", reason="crashed")
        lab.trials.append(SimpleNamespace(role="verify", is_alive=True, end_with=end_with))
        began.set()
        assert ended.wait(10)
        raise TrialError("was ended", reason="ended_early")

    answer_with(monkeypatch, answer)
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=True)
    runs.run_plain()
    with pytest.raises(TrialError, match="the plain run crashed"):
        runs.follow(FUSED)


def test_a_plan_that_crashes_beside_the_plain_run_leaves_that_one_to_the_next(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = [True]

    def answer(plan: Plan) -> dict[str, Any]:
        if plan and crashes.pop():
            raise TrialError("the plan's run crashed", reason="crashed")
        return record()

    followed = answer_with(monkeypatch, answer)
    runs = FollowedRuns(lab, Plan(), 10, drawn_with=1, at_once=True)
    runs.run_plain()
    with pytest.raises(TrialError, match="the plan's run crashed"):
        runs.follow(FUSED)
    crashes.append(False)
    assert runs.follow(FUSED) == record()
    assert followed.count(Plan()) == 1


@pytest.mark.parametrize(("length", "plan_runs"), [(100, 1), (150, 1), (12, 2)])
def test_steps_are_sampled_in_all_parts_of_a_run_whose_length_is_not_known_yet(
    length: int, plan_runs: int, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[tuple[int, ...]] = []
    began = threading.Event()

    def run(lab: Any, plan: Plan, **options: Any) -> Any:
        del lab
        if plan:
            wanted.append(options["samples"])
            began.set()
        else:
            began.wait(10)
        kept = [{"step": step} for step in options["samples"] if step < length]
        return {"record": record() | {"steps": length, "samples": kept}, "techniques": []}

    def reference(self: Prover, found: Any, asked: int, *_: Any, **__: Any) -> Any:
        seen.append(([row["step"] for row in found["samples"]], asked))
        return SimpleNamespace(rows=[])

    seen: list[tuple[list[int], int]] = []
    monkeypatch.setattr(followed_runs, "run_to_report", run)
    monkeypatch.setattr(Prover, "_reference", reference)
    monkeypatch.setattr(Prover, "_of_format", lambda self, plan, sampled: sampled)
    made = Prover(lab, 100, registry(), at_once=True)
    made.run_plain()
    made._repeat(FUSED)
    assert len(wanted) == plan_runs
    (kept, asked), count = seen[0], 4 if length < 50 else 6
    assert count <= asked == len(kept) <= 2 * count
    # Another optimizer may be missing in the step that the run is stopped in.
    assert max(kept) < length - 1
    # In each half of the run some.
    assert min(kept) < length / 2 < max(kept)
