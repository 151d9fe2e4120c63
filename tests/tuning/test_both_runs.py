"""The whole runs with and without a plan are predicted from the same parts."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.tuning import predicting
from hotlap.tuning.concluding import conclude
from hotlap.tuning.result import ProvenPlan
from tests.tuning import faked

FUSED = Plan({"optimizer": {"implementation": "fused"}})
RESIDENT = Plan({"resident": {}})
EVALUATION_MS = 400.0
EPOCH, STEPS = 100, 1000


def watched(step_ms: float, steps: int, *, evaluates: int | None = None) -> Observation:
    """Watch so many steps, of which one also evaluates, if any does."""
    made = faked.trace(step_ms, steps=steps)
    rows = [list(row) for row in made.steps]
    if evaluates is not None:
        rows[evaluates][-1] += EVALUATION_MS
    starts = tuple(range(0, steps, EPOCH))
    return Observation(replace(made, steps=rows, epoch_starts=starts), [])


def without_epochs(seen: Observation) -> Observation:
    facts = replace(seen.trace.facts, steps_per_epoch=None, loaders=())
    return replace(seen, trace=replace(seen.trace, facts=facts, epoch_starts=()))


def seconds(
    monkeypatch: pytest.MonkeyPatch,
    seen: Observation,
    own: Observation,
    plan: Plan = FUSED,
    speed: float = 2.0,
) -> tuple[float, float]:
    """Return what is predicted of the plain run, and of the plan's."""
    final = faked.raced({plan: speed})
    found = conclude(tuner_for(monkeypatch, own, plan), seen, final, [rung(final, plan)])
    assert found.gained, found.reason
    plain, under = (found.whole_run[name].seconds for name in ("baseline", "best"))
    assert plain is not None and under is not None
    return plain, under


def tuner_for(monkeypatch: pytest.MonkeyPatch, own: Observation, plan: Plan) -> Any:
    shown = replace(own, techniques=faked.proofs(plan))
    monkeypatch.setattr(predicting, "watch", lambda *_, **__: shown)
    return faked.tuner()


def rung(final: Race, plan: Plan) -> ProvenPlan:
    verdict = Verdict("exact", "bit-equal", 99)
    return ProvenPlan("exact", plan, final.ratio(faked.name_of(plan)), verdict)


@pytest.mark.parametrize(("of_plain", "of_plan"), [(150, 50), (50, 150), (150, 150), (50, 50)])
def test_an_evaluation_that_one_of_two_watches_reached_is_no_saving_and_no_loss(
    of_plain: int, of_plan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 4 ms become 2 ms; each of ten epochs ends with an evaluation of 400 ms."""

    def run(step_ms: float, steps: int) -> Observation:
        return watched(step_ms, steps, evaluates=EPOCH if steps > EPOCH else None)

    plain, under = seconds(monkeypatch, run(4.0, of_plain), run(2.0, of_plan))
    assert plain - under == pytest.approx(STEPS * 2e-3, rel=0.02)
    if of_plain + of_plan > 100:
        assert plain == pytest.approx(2.0 + STEPS * 4e-3 + 10 * EVALUATION_MS / 1e3, rel=0.05)


@pytest.mark.parametrize(("own_ms", "each_ms"), [(2.0, 2.0), (1.2, 2.0), (1.999, 1.999)])
def test_a_watch_on_a_faster_machine_saves_no_more_than_turns_side_by_side_have_shown(
    own_ms: float, each_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of 4 and 2 ms; the plan is watched alone while the machine may be faster."""
    own = watched(own_ms, 150)
    _, under = seconds(monkeypatch, watched(4.0, 150), own)
    later_ms = (STEPS - EPOCH) * each_ms
    assert under == pytest.approx(2.2 + (EPOCH * own_ms + later_ms) / 1e3, rel=0.005)


@pytest.mark.parametrize(("in_plain", "in_plan"), [(25, None), (None, 25), (None, None)])
def test_a_run_without_epochs_saves_what_its_steps_save(
    in_plain: int | None, in_plan: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = without_epochs(watched(4.0, 50, evaluates=in_plain))
    own = without_epochs(watched(2.0, 50, evaluates=in_plan))
    plain, under = seconds(monkeypatch, seen, own)
    assert plain - under == pytest.approx(STEPS * 2e-3, rel=0.02)
    # The same of a run of one epoch.
    facts = replace(seen.trace.facts, steps_per_epoch=STEPS)
    seen = replace(seen, trace=replace(seen.trace, facts=facts))
    assert seconds(monkeypatch, seen, own) == pytest.approx((plain, under))


def test_a_run_that_was_watched_as_a_whole_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = without_epochs(watched(4.0, 50))
    own = without_epochs(watched(2.0, 1000, evaluates=500))
    ended = replace(own, trace=replace(own.trace, ended="script"))
    _, under = seconds(monkeypatch, seen, ended)
    assert under == pytest.approx(2.0 + STEPS * 2e-3 + EVALUATION_MS / 1e3 + 0.2)


def test_a_plain_run_that_stopped_early_did_not_take_the_planned_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After 50 of 1000 steps, in 2.4 s: the steps of the plan cannot save 2 s of that."""
    own = without_epochs(watched(2.0, 50))
    final = faked.raced({FUSED: 2.0})
    for steps, plain, gains in ((50, "2.4", False), (STEPS, "6.2", True)):
        seen = without_epochs(watched(4.0, steps))
        seen = replace(seen, trace=replace(seen.trace, ended="script"))
        found = conclude(tuner_for(monkeypatch, own, FUSED), seen, final, [rung(final, FUSED)])
        assert found.gained == gains, found.reason
        if gains:
            # Control: one that took all planned steps.
            assert found.whole_run["best"].seconds == pytest.approx(4.2, rel=0.01)
        else:
            assert f"predicted to take 4.2 s and {plain} s without the plan" in found.reason


def test_without_time_to_watch_the_plan_evaluations_take_as_long_as_before() -> None:
    seen = watched(4.0, 150, evaluates=EPOCH)
    final = faked.raced({FUSED: 2.0, RESIDENT: 2.0})
    for plan, saved_s in ((FUSED, STEPS * 2e-3), (RESIDENT, (STEPS - EPOCH) * 2e-3)):
        found = conclude(faked.tuner(seconds=1.0), seen, final, [rung(final, plan)])
        plain, under = (found.whole_run[name].seconds or 0.0 for name in ("baseline", "best"))
        assert plain - under == pytest.approx(saved_s, rel=0.06)
