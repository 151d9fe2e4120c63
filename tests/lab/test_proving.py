"""A proof rests on whole repetitions, in float64 or saying why not, that the plain run passes."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.attach.entry import Script
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import build
from hotlap.engine.state.content import capture, restore
from hotlap.engine.state.position import Position
from hotlap.engine.steps import steps_of
from hotlap.errors import TrialError, UsageError
from hotlap.lab import script_repetition
from hotlap.lab.proving import Prover
from hotlap.lab.recipe_repetition import RecipeRepetition
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import registry
from tests.engine.test_run import make

NOISY = Path(__file__).with_name("noisy.py")
NAMES = ("FREEZE", "FREEZE_BIASES", "DROP_BIAS", "SCALE")
BY_STATE = {"LOST_STATE": {"buffers"}, "SHRINK_STATE": {"gradient"}, "STALE_STATE": {"buffers"}}
"""Which check tells of a state that is lost, moved or stale."""
FUSED = Plan({"optimizer": {"implementation": "fused"}})

RECORD = {
    "samples": [{"file": f"step-{k}", "updates": [k], "draws_itself": False} for k in range(6)],
    "evaluations": [],
    "not_sampled": "",
}


def prover(monkeypatch: pytest.MonkeyPatch, *reports: Any) -> Prover:
    """Return a prover whose repetitions end as told, one after another."""
    left = list(reports)

    def observe(*args: Any, **more: Any) -> Any:
        report = left.pop(0)
        if isinstance(report, Exception):
            raise report
        return report

    monkeypatch.setattr(script_repetition, "run_to_report", observe)
    made = Prover(SimpleNamespace(), 100, {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Prover, "plain", {"hyperparameters": ["[]"] * 10})
    return made


def report(whole: int, **more: str) -> dict[str, Any]:
    found = {"whole": whole, "results": [{}] * whole, "evaluations": []}
    return {**found, "problem": "", "raised": "", **more}


def test_a_repetition_that_ends_half_way_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    half = report(2, raised="RuntimeError: boom")
    found = prover(monkeypatch, half, half)._reference(RECORD, 6, "")
    assert not found.rows
    assert "2 of 6 were, then RuntimeError: boom" in found.problem
    whole = prover(monkeypatch, report(6))._reference(RECORD, 6, "drawn")
    assert (len(whole.rows), whole.fallback, whole.drawn) == (6, "", "drawn")


def test_a_fallback_to_float32_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    half = report(2, raised="RuntimeError: expected Float")
    found = prover(monkeypatch, half, report(6))._reference(RECORD, 6, "")
    assert len(found.rows) == 6
    assert "float64: 2 of 6 were, then RuntimeError: expected Float" in found.fallback
    crashed = TrialError("it died", reason="crashed", output="")
    found = prover(monkeypatch, crashed, report(6))._reference(RECORD, 6, "")
    assert "it died" in found.fallback


def test_what_goes_wrong_in_the_repetition_itself_is_unproven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = prover(monkeypatch, report(6, problem="KeyError: 'x'"), report(6))
    sampled = found._reference(RECORD, 6, "")
    assert not sampled.rows
    assert "KeyError" in sampled.problem


def test_fewer_samples_than_were_asked_for_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {**RECORD, "samples": RECORD["samples"][:4]}
    assert "4 of 6" in prover(monkeypatch)._reference(few, 6, "").problem
    gave_up = {**RECORD, "not_sampled": "no tensors"}
    assert prover(monkeypatch)._reference(gave_up, 6, "").problem == "no tensors"


class Answering:
    """A lab whose repeating processes answer as told, one after another."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.started = list(answers), []

    def start(self, role: str, **options: Any) -> "Answering":
        self.started.append(options["dtype"])
        return self

    def send(self, *args: Any, **values: Any) -> None: ...

    def kill(self) -> None: ...

    def message(self, kinds: Any, timeout_s: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def repeat(folder: Path, *answers: Any, samples: int = 2) -> tuple[Any, Answering]:
    lab = Answering(*answers)
    repeated = RecipeRepetition(lab, lambda step: [], rounding=True)  # pyright: ignore[reportArgumentType]
    for number in range(samples):
        file = folder / f"{number}"
        file.touch()
        repeated.sample({"file": str(file), "step": number})
        assert not file.exists()
    return repeated.collect("", "drawn"), lab


ROW = {"row": {"dtype": "float64"}}


def test_a_recipes_repetitions_fall_back_for_its_own_reasons_only(tmp_path: Path) -> None:
    found, lab = repeat(tmp_path, ROW, ROW)
    assert len(found.rows) == 2
    assert lab.started == ["float64"]
    theirs = {"problem": "RuntimeError: expected Float", "ours": False}
    found, lab = repeat(tmp_path, theirs, ROW, ROW)
    assert len(found.rows) == 2
    assert "expected Float" in found.fallback
    assert lab.started == ["float64", "float32"]
    for ours in ({"problem": "KeyError: 'x'", "ours": True}, UsageError("another task")):
        found, lab = repeat(tmp_path, ours)
        assert not found.rows
        assert "float64" in found.problem
        assert lab.started == ["float64"]


def test_a_recipes_repetition_that_begins_late_is_not_made(tmp_path: Path) -> None:
    theirs = {"problem": "RuntimeError: expected Float", "ours": False}
    found, _ = repeat(tmp_path, ROW, theirs, ROW)
    assert not found.rows
    assert "1 of 2 steps" in found.problem


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_a_run_in_float64_takes_over_the_optimizer_of_one_in_float32(optimizer: str) -> None:
    kind = getattr(torch.optim, optimizer)
    more = {"momentum": 0.9} if optimizer == "SGD" else {}
    task = make(optimizer=lambda model: kind(model.parameters(), lr=0.1, **more))
    built = build(task, Plan())
    for step in steps_of(built):
        if step.number == 2:
            break
    tensors, state = capture(built, Position(2))
    model = task.model
    wide = build(make(optimizer=task.optimizer, model=lambda: model().double()), Plan())
    restore(wide, Checkpoint(Path("made"), 2, tensors, state))
    for parameter in wide.model.parameters():
        assert parameter.dtype == torch.float64
        for key, value in wide.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor) and key != "step":
                assert value.dtype == torch.float64, key
        parameter.grad = torch.ones_like(parameter)
    wide.optimizer.step()


@pytest.fixture(scope="module")
def planted_path() -> Iterator[None]:
    folder = str(Path(__file__).parent)
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    patch.syspath_prepend(folder)
    yield
    patch.undo()


def noisy(kind: str) -> Script:
    return Script(path=str(NOISY), args=(kind,), cwd=str(NOISY.parent))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at_once", "plan", "tier"),
    [(False, Plan({"resident": {}}), "exact"), (True, FUSED, "rounding")],
    ids=["one after another", "at once"],
)
def test_a_script_without_a_seed_is_followed_again_with_one(
    at_once: bool, plan: Plan, tier: str
) -> None:
    script = Script(path="loading.py", args=("1000000",), cwd=str(NOISY.parent))
    with Lab(script) as lab:
        made = Prover(lab, 24, registry(), at_once=at_once)
        made.run_plain()
        assert lab.inject_seed is None
        found = made.prove(plan)
        assert (found.tier, made.differs, lab.inject_seed) == (tier, None, 0)


@pytest.mark.parametrize(
    ("kind", "lies"),
    [
        ("vae", NAMES[1:3]),
        ("drawing", NAMES[2:]),
        ("diffusion", NAMES[:2]),
        ("gan", NAMES),
        ("annealed", ()),
        ("ahead", NAMES[:2]),
        ("carrying", (*NAMES[2:], "LOST_STATE", "SHRINK_STATE")),
        ("carrying_loaded", ("STALE_STATE",)),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("planted_path")
def test_steps_that_draw_or_hang_on_their_place_are_repeated_and_lies_are_found(
    kind: str, lies: tuple[str, ...]
) -> None:
    techniques = tuple(f"planted:{name}" for name in lies)
    with Lab(noisy(kind), techniques=techniques) as lab:
        made = Prover(lab, 60, registry(techniques))
        made.run_plain()
        assert made.differs is None
        honest = made.prove(FUSED)
        changed = {name: made.prove(Plan({name.lower(): {}})) for name in lies}
    assert honest.tier == "rounding", honest.evidence
    assert "float64 at" in honest.evidence
    assert honest.horizon_steps == 60
    curves = honest.curves
    assert curves is not None and curves.steps[-1] == 60
    assert curves.plan == pytest.approx(curves.plain, rel=1e-3)
    assert "sampled with seed" in honest.evidence
    for name, found in changed.items():
        assert found.tier == "changed", found.evidence
        # What takes no gradients is seen before the first step, what gets none at each.
        expected = {"start", "participation", "gradient", "delivery"}
        assert BY_STATE.get(name, expected) & {*found.failed}, found.evidence


@pytest.mark.slow
@pytest.mark.usefixtures("planted_path")
def test_gradients_are_followed_through_a_scaler_and_clipping() -> None:
    planted = ("planted:GRADIENT_AT_TIMES",)
    with Lab(noisy("scaled"), techniques=planted) as lab:
        made = Prover(lab, 60, registry(planted))
        made.run_plain()
        honest = made.prove(Plan({"resident": {}}))
        evidence = {check.name: check.evidence for check in honest.checks}
        assert honest.tier == "exact" and "clipped to a norm of 0.3" in evidence["delivery"]
        assert made.prove(Plan({"gradient_at_times": {}})).failed == ("delivery",)


@pytest.mark.slow
def test_a_step_that_cannot_be_repeated_is_unproven_and_never_a_change() -> None:
    """Its model takes objects of a class of its own, which have no other dtype."""
    with Lab(noisy("objects")) as lab:
        made = Prover(lab, 60, registry())
        made.run_plain()
        found = made.prove(FUSED)
    assert found.tier == "unproven", found.evidence
    assert "objects that are not tensors" in found.evidence
