"""A plan is chosen by the whole run: a faster step may not be worth a long start."""

from typing import Any

import pytest

from hotlap.errors import UsageError
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.tuning import proofs, racing
from hotlap.tuning.concluding import conclude
from hotlap.tuning.result import ProvenPlan
from hotlap.tuning.stages import check_request
from hotlap.tuning.tuner import Tuner
from hotlap.tuning.whole_run_savings import keep_compiling, most_saving_first, savings
from tests.tuning import faked

FUSED = Plan({"optimizer": {"implementation": "fused"}})
COMPILED = Plan({"compile": {}})
RESIDENT = Plan({"resident": {}})


def race(compiling_s: float = 90.0) -> Race:
    """A race of steps of 20 ms: compiled ones are twice as fast, the others 1.25 times."""
    final = faked.raced({FUSED: 1.25, COMPILED: 2.0}, plain_ms=20.0)
    for arm in final.arms.values():
        arm.setup_s, arm.warm_up_s = 2.0, sum(arm.warm_up) * arm.means_ms[0] / 1e3
    final.arms[faked.name_of(COMPILED)].warm_up_s += compiling_s
    return final


def saved(final: Race, planned_steps: int, tuner: Tuner | None = None) -> Any:
    seen = faked.watched(20.0, planned_steps=planned_steps)
    return savings(tuner or faked.tuner(), seen, final)


def test_compiling_is_worth_it_in_a_long_run_only() -> None:
    final = race()
    few, many = saved(final, 2_000), saved(final, 100_000)
    name, other = faked.name_of(COMPILED), faked.name_of(FUSED)
    assert few[name].steps_s == pytest.approx(20.0) and few[name].start_s == pytest.approx(90, 0.01)
    assert few[name].seconds < 0 < few[other].seconds
    assert most_saving_first([name, other], few) == [other]
    assert most_saving_first([name, other], many) == [name, other]


def test_among_those_that_save_as_much_the_order_stays() -> None:
    final = faked.raced({FUSED: 1.50, COMPILED: 1.51})
    order = [faked.name_of(FUSED), faked.name_of(COMPILED)]
    assert most_saving_first(order, saved(final, 10_000)) == order
    final = faked.raced({FUSED: 1.30, COMPILED: 1.51})
    assert most_saving_first(order, saved(final, 10_000)) == order[::-1]


def test_a_disturbed_live_race_does_not_decide() -> None:
    """Fresh processes tell the two apart by far; the live race does so if its turns are close."""
    more, late = RESIDENT.with_technique("threads", count=1), FUSED
    final = faked.raced({RESIDENT: 1.97, more: 1.62, late: 1.0})
    tuner, by_name = faked.tuner(), [faked.name_of(plan) for plan in (more, RESIDENT, late)]
    tuner.early_gains = {late: 1.0}
    for low, high, first in ((1.80, 1.96, by_name[0]), (1.57, 2.46, by_name[1])):
        tuner.live = {more: Ratio(1.88, low, high, 8), RESIDENT: Ratio(1.6, 1.54, 1.68, 8)}
        tuner.live |= {late: Ratio(1.3, 1.29, 1.31, 8)}
        found = saved(final, 10_000, tuner)
        assert most_saving_first(by_name, found)[0] == first
        assert tuner.live_decides == (first == by_name[0])
        # What it gains late counts in either case.
        assert found[by_name[2]].steps_s == pytest.approx(10_000 * 4e-3 * (1 - 1 / 1.3))


def test_a_wide_interval_of_a_slower_plan_does_not_count_as_a_disturbance() -> None:
    more = RESIDENT.with_technique("threads", count=1)
    final, tuner = faked.raced({more: 1.4, RESIDENT: 1.6, FUSED: 1.1}), faked.tuner()
    tuner.live = {more: Ratio(1.6, 1.57, 1.63, 9), RESIDENT: Ratio(1.5, 1.47, 1.53, 9)}
    for high, decides in ((1.35, True), (1.95, False)):
        tuner.live[FUSED] = Ratio(1.1, 0.85, high, 4)
        saved(final, 10_000, tuner)
        assert tuner.live_decides is decides


def test_what_an_earlier_race_has_compiled_still_has_to_be_compiled_in_a_run() -> None:
    """The first race takes 90 s to compile, later ones 2 s: they find what it has made."""
    tuner, both = faked.tuner(), COMPILED.with_technique("optimizer", implementation="fused")
    keep_compiling(tuner, race())
    later = faked.raced({both: 2.0, FUSED: 1.25}, plain_ms=20.0)
    for arm in later.arms.values():
        arm.warm_up_s = sum(arm.warm_up) * arm.means_ms[0] / 1e3
    later.arms[faked.name_of(both)].warm_up_s += 2.0
    keep_compiling(tuner, later)
    found = saved(later, 2_000, tuner)
    assert found[faked.name_of(both)].start_s == pytest.approx(90, 0.01)
    # Control: what compiles nothing starts as fast as before.
    assert found[faked.name_of(FUSED)].start_s == 0
    assert saved(later, 2_000)[faked.name_of(both)].start_s == pytest.approx(2, 0.01)


def test_without_time_to_watch_the_plan_its_run_is_predicted_with_what_it_compiles() -> None:
    final, seen = race(), faked.watched(20.0, planned_steps=100_000)
    name, plan = faked.name_of(COMPILED), COMPILED
    verdict = Verdict("rounding", "so it was given", 99)
    found = conclude(
        faked.tuner(seconds=1.0),
        seen,
        final,
        [ProvenPlan("rounding", plan, final.ratio(name), verdict)],
    )
    before, after = (found.whole_run[key].seconds or 0.0 for key in ("baseline", "best"))
    # 2 s of set-up, and half of the steps' time.
    assert after == pytest.approx(2.0 + 90.0 + (before - 2.0) / 2, rel=0.001)


def test_each_race_notes_what_was_compiled_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "race", lambda *_, **__: race())
    tuner = faked.tuner()
    racing.race_plans(tuner, faked.watched(), [], until=0.0, number=1)
    assert tuner.compiling_s[COMPILED] == pytest.approx(90, 0.01)


def test_starts_that_differ_by_chance_count_for_nothing() -> None:
    final = race(compiling_s=0.8)
    assert saved(final, 100)[faked.name_of(COMPILED)].start_s == 0


@pytest.mark.parametrize(("slower", "compiling_s"), [(1.03, 0.0), (1.0, 20.0)])
def test_a_long_warm_up_that_was_a_little_slower_has_compiled_nothing(
    slower: float, compiling_s: float
) -> None:
    """1030 steps of 50 ms, as for what acts late; 3 % of them are 1.5 s. Control: 20 s are kept."""
    tuner, both = faked.tuner(), COMPILED.with_technique("optimizer", implementation="fused")
    name, superset = faked.name_of(COMPILED), faked.name_of(both)
    noisy, later = (faked.raced({p: 1.0}, plain_ms=50.0, wobble=0) for p in (COMPILED, both))
    for arm in (*noisy.arms.values(), *later.arms.values()):
        arm.warm_up, arm.warm_up_s = (1000, 30), 1030 * 0.05
    noisy.arms[name].warm_up_s = slower * 1030 * 0.05 + compiling_s
    for each in (noisy, later):
        keep_compiling(tuner, each)
    starts = saved(noisy, 2_000, tuner)[name].start_s, saved(later, 2_000, tuner)[superset].start_s
    assert starts == (pytest.approx(compiling_s, rel=0.15), pytest.approx(compiling_s, rel=0.15))


def test_resident_saves_nothing_in_the_first_epoch() -> None:
    final = faked.raced({RESIDENT: 2.0}, plain_ms=20.0)
    final.arms[faked.name_of(RESIDENT)].setup_s = 30.0
    assert saved(final, 100)[faked.name_of(RESIDENT)].seconds == 0
    # What it read ahead for the race is no part of a run.
    assert saved(final, 300)[faked.name_of(RESIDENT)].seconds == pytest.approx(200 * 0.02 / 2)


def test_without_a_known_end_the_steps_decide() -> None:
    assert saved(race(), None) is None  # type: ignore[arg-type]
    steady = faked.tuner()
    steady.aim = "steady"
    assert saved(race(), 2_000, steady) is None


class Exact:
    """A prover to whom all is exact."""

    plain: Any = "followed"
    has_plain = True
    applied: Any = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        del args, options

    def prove(self, plan: Plan) -> Verdict:
        del plan
        return Verdict("rounding", "bit-equal", 99)


@pytest.mark.parametrize(
    ("steps", "aim", "expected"),
    [
        (2_000, "run", FUSED),
        (100_000, "run", COMPILED),
        (2_000, "steady", COMPILED),
    ],
)
def test_the_plan_that_is_proven_is_the_one_that_saves_most(
    steps: int, aim: str, expected: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "Prover", Exact)
    final, tuner = race(), faked.tuner(accept="rounding")
    tuner.aim = aim
    rungs = proofs.prove(tuner, final, None, saved(final, steps, tuner))
    assert max(rungs, key=lambda rung: rung.worth).plan == expected


def test_where_no_plan_shortens_the_run_it_says_so_with_the_figures() -> None:
    final, tuner = race(), faked.tuner()
    del final.arms[faked.name_of(FUSED)]  # type: ignore[attr-defined]
    seen = faked.watched(20.0, planned_steps=2_000)
    rungs = proofs.prove(tuner, final, None, savings(tuner, seen, final))
    assert rungs == []
    found = conclude(tuner, seen, final, rungs)
    assert found.outcome == "nothing_to_gain" and not found.plan
    assert "its steps save 20.0 s, and its start takes 90.0 s more" in found.reason
    assert "--for steady" in found.reason
    assert found.to_json()["for"] == "run"


def test_an_unknown_aim_is_refused() -> None:
    with pytest.raises(UsageError, match="--for 'fast'"):
        check_request("rounding", (), (), aim="fast")


def test_too_few_steps_for_a_verdict_are_refused() -> None:
    assert check_request("rounding", (), (), steps=64)
    with pytest.raises(UsageError, match=r"--steps 63 is too few for a verdict\. Expected: 64"):
        check_request("rounding", (), (), steps=63)
