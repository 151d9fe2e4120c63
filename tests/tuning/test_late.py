"""What acts late is tried in the watched process where fresh ones do not get so old."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.lab.decisions import Decision
from hotlap.lab.late_steps import LateSteps
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.tuning import live_races
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.concluding import conclude
from hotlap.tuning.continuing import continued_races
from hotlap.tuning.late import place_late_ones, slowdown, without_late_ones
from hotlap.tuning.live_races import LiveRaces
from hotlap.tuning.result import ProvenPlan
from tests.tuning import faked

FLUSH = Candidate("flush_denormal", {}, Numerics.ROUNDING)
RESIDENT = Candidate("resident", {}, Numerics.EXACT)
BOTH = [RESIDENT, FLUSH]
SEEN = faked.watched()
"""50 steps of 4 ms; fresh processes get there in some 4 s."""
GONE = replace(SEEN, trial=None)


def test_with_time_for_it_fresh_processes_get_as_old() -> None:
    tuner = faked.tuner(seconds=100.0)
    assert place_late_ones(tuner, SEEN, BOTH) == BOTH and not tuner.is_late_live
    assert tuner.age_for(SEEN, [FLUSH.plan()]) == 50 and tuner.age_for(SEEN, [Plan()]) == 0
    assert without_late_ones(tuner, SEEN, BOTH) == BOTH


@pytest.mark.parametrize(("seconds", "steps"), [(5.0, None), (100.0, 100)])
def test_else_it_is_tried_in_the_watched_process_only(seconds: float, steps: int | None) -> None:
    tuner = faked.tuner(seconds)
    tuner.most_steps = steps
    assert place_late_ones(tuner, SEEN, BOTH) == BOTH and tuner.is_late_live
    assert tuner.age_for(SEEN, [FLUSH.plan()]) == 0
    assert tuner.notes.untried == {}
    # What was not decided there is not tried in fresh processes.
    assert without_late_ones(tuner, SEEN, BOTH) == [RESIDENT]
    assert tuner.notes.untried["flush_denormal"].startswith("it shows after 50 steps only")


def test_a_late_one_that_is_tried_in_the_watched_process_asks_for_no_budget() -> None:
    tuner = faked.tuner(5.0)
    assert place_late_ones(tuner, SEEN, [FLUSH]) == [FLUSH] and tuner.is_late_live
    assert tuner.budget.short_s == 0.0
    # Control: where it must be tried in fresh processes after all, the budget is named.
    assert without_late_ones(tuner, SEEN, [FLUSH]) == [] and tuner.budget.short_s > 0.0


def test_where_no_process_has_stayed_it_is_not_tried() -> None:
    tuner = faked.tuner(seconds=5.0)
    assert place_late_ones(tuner, GONE, BOTH) == [RESIDENT]
    assert "use --budget" in tuner.notes.untried["flush_denormal"]
    # Control: what acts at once is.
    assert place_late_ones(faked.tuner(seconds=5.0), GONE, [RESIDENT]) == [RESIDENT]


class Kept:
    """A process that keeps so many of the steps that it is asked for."""

    slowed = 1.0

    def __init__(self, count: int) -> None:
        self.count = count

    def against(self, on: Any, base: Any) -> Decision:
        del base
        ratios = {(0,): 1.5, (0, 1): 3.0}
        ratio = ratios.get(on)
        return Decision(on, "undecided", ratio and Ratio(ratio, ratio, ratio, 12))

    def keep(self, on: Any, folder: Any) -> LateSteps:
        assert on == (1,) and folder.name == "late-0"
        rows = [{"step": 4000 + step} for step in range(self.count)]
        return LateSteps(4000, rows, "a batch holds a nested tensor")


@pytest.mark.parametrize("count", [6, 2])
def test_only_what_steps_were_kept_of_is_confirmed(count: int) -> None:
    tuner = faked.tuner()
    tuner.is_late_live = True
    duel: Any = Kept(count)
    races = live_races._Races(tuner, duel, BOTH, (2, 1.0), (9.0, 9.0), 5.0)
    ratio = Ratio(2.0, 1.9, 2.1, 12)
    decisions = [Decision((number,), "faster", ratio) for number in (0, 1)]
    finalists = races._plans(decisions)
    late = races._keep_late(finalists)
    kept = [FLUSH.plan()] if count == 6 else []
    assert [*late] == kept and [*finalists] == [RESIDENT.plan(), *kept]
    assert ("flush_denormal" in tuner.notes.untried) == (not kept)


def races_of(tuner: Any, count: int) -> live_races._Races:
    tuner.is_late_live = True
    duel: Any = Kept(count)
    return live_races._Races(tuner, duel, BOTH, (2, 1.0), (9.0, 9.0), 5.0)


def test_where_the_process_is_gone_nothing_is_kept() -> None:
    tuner = faked.tuner()
    races = races_of(tuner, 6)
    races._is_over = True
    finalists = races._plans([Decision((1,), "faster", Ratio(2.0, 1.9, 2.1, 12))])
    assert races._keep_late(finalists) == {} and finalists == {}
    assert "cannot be used any more" in tuner.notes.untried["flush_denormal"]


@pytest.mark.parametrize(("count", "plan"), [(6, FLUSH), (2, RESIDENT)])
def test_where_steps_cannot_be_kept_the_fastest_of_the_others_is_confirmed(
    count: int, plan: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    races = races_of(faked.tuner(), count)
    alone = {
        RESIDENT: Decision((0,), "faster", Ratio(1.5, 1.4, 1.6, 12)),
        FLUSH: Decision((1,), "faster", Ratio(2.0, 1.9, 2.1, 12)),
    }
    monkeypatch.setattr(races, "_race_alone", lambda: alone)
    monkeypatch.setattr(races, "_combine", lambda _: (1,))
    found = races.run(BOTH)
    others = [RESIDENT.plan()] if plan is FLUSH else []
    assert [*found.finalists] == [plan.plan(), *others]
    assert found.early_gains == ({FLUSH.plan(): 1.0} if plan is FLUSH else {})


def test_what_a_plan_gains_early_is_that_of_its_others() -> None:
    races = races_of(faked.tuner(), 6)
    both = races._plan((0, 1))
    assert races._early_gain(both, {}) == 1.5
    monkey: Any = races._duel
    monkey.against = lambda on, _: (
        Kept.against(monkey, on, ()) if len(on) > 1 else Decision(on, "undecided")
    )
    alone = {FLUSH: Decision((1,), "faster", Ratio(2.0, 1.9, 2.1, 12))}
    assert races._early_gain(both, alone) == 1.5 and races._early_gain(both, {}) == 3.0


@pytest.mark.parametrize(
    "facts", [{"loaders": ()}, {"optimizers": 2 * SEEN.trace.facts.optimizers}]
)
def test_where_no_steps_can_be_kept_it_is_not_raced(facts: dict[str, Any]) -> None:
    trace = replace(SEEN.trace, facts=replace(SEEN.trace.facts, **facts))
    tuner = faked.tuner(seconds=5.0)
    assert place_late_ones(tuner, replace(SEEN, trace=trace), BOTH) == [RESIDENT]


def test_what_was_raced_before_is_raced_again_where_its_steps_are_needed() -> None:
    tuner = faked.tuner()
    kept: Any = SimpleNamespace(
        finalists={FLUSH.plan(): Ratio(2.0, 1.9, 2.1, 12)},
        had_as_much=lambda _: True,
        decisions={},
        verdicts={},
        rest=[],
        live_floor=0.0,
    )
    tuner.kept = kept
    assert continued_races(tuner, BOTH) is not None
    tuner.is_late_live = True
    assert continued_races(tuner, BOTH) is None
    kept.finalists = {RESIDENT.plan(): Ratio(2.0, 1.9, 2.1, 12)}
    assert continued_races(tuner, BOTH) is not None


def alone(flush: Decision) -> LiveRaces:
    return LiveRaces({}, [], {RESIDENT: Decision((0,), "faster", Ratio(2, 2, 2, 9)), FLUSH: flush})


def test_a_late_step_is_slower_by_what_acts_late_gives_back() -> None:
    tuner, ratio = faked.tuner(), Ratio(1.25, 1.2, 1.3, 12)
    assert slowdown(tuner, alone(Decision((1,), "faster", ratio))) == 1.25
    wide = Ratio(1.25, 0.9, 1.6, 12)
    assert slowdown(tuner, alone(Decision((1,), "undecided", wide, odds=30.0))) == 1.25
    assert slowdown(tuner, alone(Decision((1,), "undecided", wide, odds=9.0))) == 1.0
    assert slowdown(tuner, LiveRaces({}, [])) == 1.0


def predicted(
    monkeypatch: pytest.MonkeyPatch, tuner: Any, final: Race, plan: Plan
) -> list[float | None]:
    """Return the seconds of both whole runs, where the plan's steps were watched to take 2 ms."""
    own = replace(SEEN.trace, steps=faked.trace(2.0).steps)
    watched = replace(SEEN, trace=own, techniques=faked.proofs(plan))
    monkeypatch.setattr("hotlap.tuning.predicting.watch", lambda *_, **__: watched)
    monkeypatch.setattr(tuner, "reads_all", lambda _: True)
    proven = ProvenPlan("exact", plan, final.ratio(faked.name_of(plan)), Verdict("exact", "", 9))
    found = conclude(tuner, SEEN, final, [proven])
    assert found.whole_run["baseline"].slowdown == tuner.slowdown
    return [found.whole_run[name].seconds for name in ("baseline", "best")]


@pytest.mark.parametrize("is_late_live", [True, False])
@pytest.mark.parametrize("candidate", BOTH)
def test_runs_whose_steps_become_slower_are_predicted_so(
    candidate: Candidate, is_late_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1000 steps of 4 ms, slower by 1 ms after the 50 that were watched, and twice as fast under
    the plan.

    Fresh processes that got as old as the watched one have slow steps, and young ones have not.
    """
    aged = candidate is FLUSH and not is_late_live
    plain_ms = 5.0 if aged else 4.0
    plan = candidate.plan()
    final = faked.raced({plan: plain_ms / 2.0}, plain_ms=plain_ms, wobble=0.0)
    tuner = faked.tuner()
    tuner.slowdown, tuner.is_late_live = 1.25, is_late_live
    before, after = predicted(monkeypatch, tuner, final, plan)
    assert before == pytest.approx(2.2 + 0.2 + 950 * 0.005, abs=0.02)
    # What acts late keeps its steps as they were.
    later_s = 950 * (0.002 if candidate is FLUSH else 0.003)
    assert after == pytest.approx(2.2 + 0.1 + later_s, abs=0.02)


@pytest.mark.parametrize("slowed", [1.04, 1.5])
def test_beside_other_processes_runs_are_predicted_by_how_much_these_slow_steps(
    slowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1000 steps of 4 ms, of which 50 were watched, and twice as fast under the plan."""
    plan = RESIDENT.plan()
    final = faked.raced({plan: 2.0}, plain_ms=4.0, wobble=0.0)
    # The few turns of that race fell between what the others do.
    tuner = faked.tuner()
    tuner.slowed = slowed
    before, after = predicted(monkeypatch, tuner, final, plan)
    # What a step's mean is beyond its median anyhow is in the means of the race already.
    factor = slowed if slowed > 1.05 else 1.0
    assert before == pytest.approx(2.2 + 0.2 + 950 * 0.004 * factor, abs=0.02)
    assert after == pytest.approx(2.2 + 0.1 + 950 * 0.002 * factor, abs=0.02)
