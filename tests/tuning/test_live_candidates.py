"""A duel puts live candidates in order; it claims nothing."""

from typing import Any

import pytest

from hotlap.errors import TrialError
from hotlap.lab.duel import Decision, Duel, State
from hotlap.lab.statistics import Ratio
from hotlap.techniques import Numerics
from hotlap.tuning import live_candidates
from hotlap.tuning.candidates import Candidate
from tests.tuning import faked

RESIDENT = Candidate("resident", {}, Numerics.EXACT)
FOREACH = Candidate("optimizer", {"implementation": "foreach"}, Numerics.ROUNDING)
FUSED = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
ONE = Candidate("threads", {"count": 1}, Numerics.ROUNDING)
ALL = [RESIDENT, FOREACH, FUSED, ONE]


def decided(candidate: Candidate, state: State, low: float, high: float) -> Decision:
    return Decision(candidate.plan(), state, Ratio((low * high) ** 0.5, low, high, 12))


def ordered(
    monkeypatch: pytest.MonkeyPatch,
    *decisions: Decision,
    placebo: Ratio | None = None,
    hinted: int = 0,
    tuner: Any = None,
) -> list[Candidate]:
    found = Duel(decisions, placebo, 12, 3.0)
    monkeypatch.setattr(live_candidates, "duel", lambda *_, **__: found)
    tuner = tuner or faked.tuner()
    return live_candidates.order_by_duel(tuner, faked.watched(), ALL, hinted)


def test_what_is_faster_comes_first_and_what_is_slower_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner = faked.tuner()
    foreach = decided(FOREACH, "not_faster", 0.7, 0.8)
    fused = decided(FUSED, "not_faster", 0.99, 1.005)
    one = decided(ONE, "faster", 1.5, 1.7)
    assert ordered(monkeypatch, foreach, fused, one, tuner=tuner) == [ONE, RESIDENT, FUSED]
    (row,) = tuner.trials
    assert row.race == 0 and row.plan == FOREACH.plan()
    assert "in one process" in tuner.notes.rows(["optimizer"])[0]["why"]


def test_a_noisy_placebo_takes_small_effects_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        decided(FOREACH, "undecided", 0.85, 1.2),
        decided(FUSED, "undecided", 1.1, 1.2),
        decided(ONE, "undecided", 9.0, 30.0),
    )
    assert ordered(monkeypatch, *rows)[:2] == [ONE, FUSED]
    noisy = Ratio(0.9, 0.6, 1.05, 3)
    assert ordered(monkeypatch, *rows, placebo=noisy) == [ONE, RESIDENT, FOREACH, FUSED]


def test_what_few_turns_show_as_slower_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = faked.tuner()
    rows = [decided(candidate, "undecided", 0.5, 0.7) for candidate in (FOREACH, FUSED, ONE)]
    assert ordered(monkeypatch, *rows, tuner=tuner) == ALL
    assert tuner.trials == []


def test_hinted_candidates_stay_and_a_failed_duel_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = decided(FUSED, "not_faster", 0.5, 0.6)
    one = decided(ONE, "faster", 1.5, 1.7)
    assert ordered(monkeypatch, slow, one, hinted=2) == [RESIDENT, FOREACH, ONE]

    def fails(*_: Any, **__: Any) -> Any:
        raise TrialError("it crashed", reason="crashed")

    monkeypatch.setattr(live_candidates, "duel", fails)
    assert live_candidates.order_by_duel(faked.tuner(), faked.watched(), ALL, 0) == ALL
    # A budget that hardly suffices for the races is not spent on a duel.
    assert live_candidates.order_by_duel(faked.tuner(seconds=9), faked.watched(), ALL, 0) == ALL
