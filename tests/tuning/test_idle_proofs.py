"""A proof of a technique that had no effect in it proves nothing of that technique."""

from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.errors import TrialError
from hotlap.lab.proving import Prover
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile, Speedup
from hotlap.techniques import registry
from hotlap.tuning import checking, proofs
from tests.tuning import faked

RESIDENT = Plan({"resident": {}})
THREADS = Plan({"threads": {"count": 1}})
DENORMAL = Plan({"flush_denormal": {}})


class Proofs:
    """A prover to whom all is `tier`, and whose techniques are in `state`, `ahead` if filled."""

    plain: Any = "followed"
    has_plain = True
    fill_ahead = False

    def __init__(self, state: str, ahead: str = "", tier: str = "exact") -> None:
        self.state, self.ahead, self.tier = state, ahead or state, tier
        self.proven: list[str] = []
        self.applied: list[dict[str, str]] = []

    def prove(self, plan: Plan) -> Verdict:
        return self._prove(plan, self.state)

    def prove_ahead(self, plan: Plan) -> Verdict:
        return self._prove(plan, self.ahead)

    def _prove(self, plan: Plan, state: str) -> Verdict:
        self.proven.append(state)
        self.applied = faked.proofs(plan, state)
        return Verdict(self.tier, "bit-equal", 264)


class FailsAhead(Proofs):
    """The same, and where samples are served from memory a later one of its runs fails."""

    def prove_ahead(self, plan: Plan) -> Verdict:
        super().prove_ahead(plan)
        raise TrialError("it took more than 600 s\nand so on", reason="timeout")


def rung(prover: Any, plan: Plan = RESIDENT, seconds: float = 1000.0) -> tuple[Any, Any]:
    tuner = faked.tuner(seconds)
    final = faked.raced({plan: 2.0})
    tier = "exact" if plan == RESIDENT else "rounding"
    return tuner, proofs.prove_tier(tuner, prover, final, [faked.name_of(plan)], tier, [])


def test_what_served_nothing_in_its_proof_is_proven_again_with_its_samples_in_memory() -> None:
    prover = Proofs("no_effect", ahead="applied")
    _, taken = rung(prover)
    assert prover.proven == ["no_effect", "applied"]
    assert taken is not None and taken.tier == "exact" and taken.verdict.evidence == "bit-equal"
    # Control: what was in effect is proven once.
    prover = Proofs("applied")
    _, taken = rung(prover)
    assert prover.proven == ["applied"] and taken is not None


@pytest.mark.parametrize(
    ("state", "plan", "times"),
    # Only what keeps samples can come into effect by having them in memory.
    [("no_effect", RESIDENT, 2), ("refused", RESIDENT, 1), ("no_effect", THREADS, 1)],
)
def test_what_is_in_effect_in_no_proof_is_not_proven_and_says_why(
    state: str, plan: Plan, times: int
) -> None:
    prover = Proofs(state)
    tuner, taken = rung(prover, plan)
    assert taken is None and len(prover.proven) == times
    (name,) = plan.techniques
    words = f"not in effect in the 264 steps of the proof: {name}: so it says"
    assert f"its verdict is `unproven`: {words}" in tuner.notes.unproven
    assert tuner.kept.verdicts == {}


@pytest.mark.parametrize(("accept", "tier"), [("rounding", "rounding"), ("exact", None)])
def test_an_exact_claim_that_is_proven_as_rounding_is_taken_where_that_is_accepted(
    accept: str, tier: str | None
) -> None:
    """As of a script that does not repeat itself bit for bit."""
    tuner, final = faked.tuner(accept=accept), faked.raced({RESIDENT: 2.0})
    prover: Any = Proofs("applied", tier="rounding")
    names = [faked.name_of(RESIDENT)]
    taken = proofs.prove_tier(tuner, prover, final, names, "exact", [])
    assert (None if taken is None else taken.tier) == tier
    assert bool(tuner.notes.unproven) is (tier is None)


def test_without_time_for_another_proof_a_budget_is_named() -> None:
    """A proof takes 3 s here."""
    prover = Proofs("no_effect", ahead="applied")
    tuner = faked.tuner(100.0)

    def prove(plan: Plan) -> Verdict:
        tuner.budget.seconds = 2.0
        return prover._prove(plan, "no_effect")

    prover.prove = prove  # type: ignore[method-assign]
    final, given = faked.raced({RESIDENT: 2.0}), faked.name_of(RESIDENT)
    made: Any = prover
    assert proofs.prove_tier(tuner, made, final, [given], "exact", []) is None
    assert prover.proven == ["no_effect"]
    assert "another proof of resident, with its samples" in tuner.budget.not_reached[0]


def test_a_change_stays_a_change_whatever_was_in_effect() -> None:
    for tier in ("changed", "unproven"):
        prover = Proofs("no_effect", tier=tier)
        tuner, taken = rung(prover)
        assert taken is None and prover.proven == ["no_effect"]
        assert f"`{tier}`: bit-equal" in tuner.notes.unproven


def compared(prover: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """Return what a comparison of two plans finds, and what it says meanwhile."""
    prover.known, prover.run_plain = registry(), lambda: None
    monkeypatch.setattr(checking, "Prover", lambda *_, **__: prover)
    lines: list[str] = []
    found = checking.compare(faked.LAB, Plan(), RESIDENT, steps=64, progress=lines.append)
    return found, lines


def test_a_plan_is_also_compared_with_its_samples_in_memory_if_it_served_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, lines = compared(Proofs("no_effect", ahead="applied"), monkeypatch)
    assert [row["state"] for row in found.techniques] == ["applied"]
    assert lines[-1] == "once more, with its samples in memory: resident: so it says"


def test_a_comparison_that_fails_with_samples_in_memory_keeps_the_verdict_that_there_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prover = FailsAhead("no_effect", ahead="applied")
    found, lines = compared(prover, monkeypatch)
    assert prover.proven == ["no_effect", "applied"]
    # The state belongs to the run that the verdict is on.
    assert found.verdict.tier == "exact"
    assert [row["state"] for row in found.techniques] == ["no_effect"]
    assert lines[-1] == "with its samples in memory it failed: it took more than 600 s"


def test_a_proof_that_fails_with_samples_in_memory_proves_nothing_of_what_was_idle() -> None:
    prover = FailsAhead("no_effect", ahead="applied")
    tuner, taken = rung(prover)
    assert taken is None and prover.proven == ["no_effect", "applied"]
    assert "not in effect in the 264 steps of the proof: resident" in tuner.notes.unproven
    assert tuner.kept.verdicts == {}


def test_samples_are_in_memory_for_that_proof_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lab: Any = SimpleNamespace(subject=None, exchange=None)
    prover, seen = Prover(lab, 64, registry()), []

    def prove(plan: Plan) -> Verdict:
        seen.append((prover.fill_ahead, prover._runs.fill_ahead))
        return Verdict("exact", str(plan), 64)

    monkeypatch.setattr(prover, "prove", prove)
    prover.prove_ahead(RESIDENT)
    prover.prove(RESIDENT)
    assert seen == [(True, True), (False, False)]


def test_a_plan_that_acts_late_is_checked_at_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    ages: list[int] = []

    def race(arms: Any, *, age: int, **options: Any) -> Any:
        del options
        ages.append(age)
        made = faked.raced({arms[-1].plan: 1.5})
        made.arms[arms[-1].name] = made.arms.pop(faked.name_of(arms[-1].plan))  # type: ignore
        return made

    compared: Any = SimpleNamespace(script="train.py", verdict=None, techniques=())
    monkeypatch.setattr(checking, "compare", lambda *_, **__: compared)
    monkeypatch.setattr(checking, "watch", lambda *_, **__: faked.watched())
    monkeypatch.setattr(checking, "race", race)
    for plan in (DENORMAL, RESIDENT):
        found = checking.check_plan(faked.LAB, PlanFile(plan), steps=64, budget_s=60.0)
        assert found.gains
    assert ages == [50, 0]


@pytest.mark.parametrize(
    ("claimed", "edited", "gains"),
    [(1.06, False, True), (1.5, False, False), (1.06, True, False), (None, False, False)],
)
def test_a_gain_is_checked_by_what_it_was_claimed_by(
    claimed: float | None, edited: bool, gains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 1.05x here, and identical processes are further apart than that."""
    made = faked.raced({RESIDENT: 1.05})
    made.arms["the plan"] = made.arms.pop(faked.name_of(RESIDENT))  # type: ignore[index]
    monkeypatch.setattr(type(made), "gains", lambda *_: False)
    compared: Any = SimpleNamespace(script="train.py", verdict=None, techniques=())
    monkeypatch.setattr(checking, "compare", lambda *_, **__: compared)
    monkeypatch.setattr(checking, "watch", lambda *_, **__: faked.watched())
    monkeypatch.setattr(checking, "race", lambda *_, **__: made)
    speedup = None if claimed is None else Speedup(claimed, 1.0, 2.0)
    file = PlanFile(RESIDENT, speedup=speedup, measured="0" * 12 if edited else None)
    found = checking.check_plan(faked.LAB, file, steps=64, budget_s=60.0)
    assert found.gains is gains
