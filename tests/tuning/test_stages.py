"""Which races a tuning holds, what it takes from them, and how long it goes on."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.host.facts import Host
from hotlap.lab.arm import Arm
from hotlap.lab.decisions import Decision
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.tuning import proofs, racing, stages
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.hints import Hint, put_first
from hotlap.tuning.proofs import prove_tier
from hotlap.tuning.ranking import fastest_first
from hotlap.tuning.technique_notes import STATES, Notes
from hotlap.tuning.tuner import Tuner
from tests.tuning import faked

TINY = Path(__file__).parents[1] / "tiny.py"
RESIDENT = Plan({"resident": {}})
FUSED = Plan({"optimizer": {"implementation": "fused"}})
BOTH = Plan({**RESIDENT.techniques, **FUSED.techniques})
RESIDENT_ALONE = Candidate("resident", {}, Numerics.EXACT)
FUSED_ALONE = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)


class Proofs:
    """A prover whose verdicts are given."""

    has_plain = True
    applied: Any = ()

    def __init__(self, **tiers: str) -> None:
        self.tiers = tiers

    def wait_for_plain(self) -> None:
        """It has ended well."""

    def prove(self, plan: Plan) -> Verdict:
        return Verdict(self.tiers["_".join(plan.techniques)], "so it was given", 100)


def rung(tuner: Tuner, final: Race, names: Sequence[str], tier: str, prover: Any) -> Any:
    return prove_tier(tuner, prover, final, names, tier, [])


@pytest.mark.parametrize("tier", ["changed", "unproven"])
def test_a_plan_that_is_not_proven_is_not_taken_and_the_next_one_is(tier: str) -> None:
    tuner = faked.tuner()
    final = faked.raced({FUSED: 2.0, BOTH: 1.5})
    names = fastest_first(final, 0.02)
    prover = Proofs(optimizer=tier, optimizer_resident="rounding")
    taken = rung(tuner, final, names, "rounding", prover)
    assert taken is not None
    assert taken.plan == BOTH
    assert tier in tuner.notes.unproven
    prover = Proofs(optimizer=tier, optimizer_resident=tier)
    assert rung(faked.tuner(), final, names, "rounding", prover) is None


def test_a_weaker_verdict_than_the_tier_is_not_taken_and_a_better_one_is() -> None:
    final = faked.raced({FUSED: 2.0})
    (name,) = fastest_first(final, 0.02)
    assert rung(faked.tuner(), final, [name], "rounding", Proofs(optimizer="statistical")) is None
    taken = rung(faked.tuner(), final, [name], "rounding", Proofs(optimizer="exact"))
    assert taken is not None
    assert taken.tier == "exact"


def test_a_proof_that_failed_proves_nothing() -> None:
    class Fails(Proofs):
        def prove(self, plan: Plan) -> Verdict:
            raise TrialError("the script died.\nIts last output", reason="crashed")

    tuner, final = faked.tuner(), faked.raced({FUSED: 2.0})
    assert rung(tuner, final, fastest_first(final, 0.02), "rounding", Fails()) is None
    assert "unproven" in tuner.notes.unproven
    assert "the script died." in tuner.notes.unproven


def test_plans_that_gained_nothing_are_not_ranked() -> None:
    final = faked.raced({RESIDENT: 1.5, FUSED: 1.01, BOTH: 0.8})
    assert fastest_first(final, 0.02) == ["resident"]
    assert fastest_first(final, 0.6) == []


def test_a_plan_must_have_gained_in_the_race_before_if_it_was_in_it() -> None:
    final = faked.raced({RESIDENT: 1.5})
    assert fastest_first(final, 0.02, faked.raced({RESIDENT: 1.0})) == []
    assert fastest_first(final, 0.02, faked.raced({RESIDENT: 1.4})) == ["resident"]
    assert fastest_first(final, 0.02, faked.raced({FUSED: 1.0})) == ["resident"]


def test_a_plan_with_a_technique_that_took_no_effect_is_not_ranked() -> None:
    final = faked.raced({BOTH: 1.5, RESIDENT: 1.4})
    final.arms[faked.name_of(BOTH)].techniques[0]["state"] = "no_effect"
    assert fastest_first(final, 0.02) == ["resident"]


def test_a_gain_that_few_long_steps_eat_up_is_none() -> None:
    honest, stalls = (faked.raced({RESIDENT: 1.3}, stalls=s) for s in ((), (RESIDENT,)))
    assert honest.gains("resident", 0.02)
    assert stalls.ratio("resident") == honest.ratio("resident")
    assert stalls.ratio_of_means("resident") < 1
    assert not stalls.gains("resident", 0.02)
    assert fastest_first(stalls, 0.02) == []


def test_only_what_gained_alone_counts_as_a_gain() -> None:
    first = faked.raced({RESIDENT: 1.5, FUSED: 1.03}, apart=0.05)
    ratios = {c: first.ratio(c.name) for c in (FUSED_ALONE, RESIDENT_ALONE)}
    assert stages.candidates_that_gained(ratios, first) == [RESIDENT_ALONE]
    first = faked.raced({RESIDENT: 1.5, FUSED: 1.6}, apart=0.05)
    ratios = {c: first.ratio(c.name) for c in (RESIDENT_ALONE, FUSED_ALONE)}
    assert stages.candidates_that_gained(ratios, first) == [FUSED_ALONE, RESIDENT_ALONE]
    # Its median lies above the floor, and its interval reaches into it.
    first = faked.raced({RESIDENT: 1.1}, wobble=0.3)
    assert first.ratio("resident").median > 1 + first.floor
    assert stages.candidates_that_gained({RESIDENT_ALONE: first.ratio("resident")}, first) == []


def test_a_technique_that_gained_nothing_alone_is_no_part_of_the_first_combination() -> None:
    tuner = faked.tuner()
    first = faked.raced({RESIDENT: 1.5, FUSED: 1.0})
    plans = stages._second_plans(tuner, [RESIDENT_ALONE, FUSED_ALONE], first)
    assert next(iter(plans.values())) == RESIDENT
    nothing = faked.raced({RESIDENT: 1.0, FUSED: 1.0})
    assert stages._second_plans(tuner, [RESIDENT_ALONE, FUSED_ALONE], nothing) == {}


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the next races come to, the last one again and again."""
    given: list[Any] = []

    def race(arms: Sequence[Arm], **options: Any) -> Race:
        speeds, apart = given.pop(0) if len(given) > 1 else given[0]
        plans = [arm.plan for arm in arms if arm.plan]
        made = faked.raced({plan: speeds.get(plan, 1.0) for plan in plans}, apart=apart)
        for arm in arms:
            arm.techniques = made.arms[arm.name].techniques
        held.append(options["seed"])
        return made

    held: list[int] = []
    monkeypatch.setattr(racing, "race", race)
    return given


def test_what_lay_under_a_noisy_floor_is_raced_again_in_fresh_processes(races: list[Any]) -> None:
    noisy, calm = ({RESIDENT: 1.06}, 0.13), ({RESIDENT: 1.06}, 0.0)
    tuner, seen = faked.tuner(), faked.watched()
    first = faked.raced(*noisy[:1], apart=noisy[1])
    assert first.floor > 0.15
    races[:] = [noisy, calm, calm]
    final, before = stages._later_races(tuner, seen, [RESIDENT_ALONE], first)
    assert final is not None
    assert fastest_first(final, tuner.floor, before) == ["resident"]
    assert tuner.floor == 0.02
    assert [row.race for row in tuner.trials] == [2, 3, 4]


def test_the_races_end_when_the_budget_does_and_when_something_has_gained(
    races: list[Any],
) -> None:
    noisy = faked.raced({RESIDENT: 1.06}, apart=0.13)
    races[:] = [({RESIDENT: 1.06}, 0.13)]
    tuner = faked.tuner(seconds=1.0)
    tuner.notes.note_race(RESIDENT_ALONE, noisy.arms["resident"], noisy)
    final, before = stages._later_races(tuner, faked.watched(), [RESIDENT_ALONE], noisy)
    assert (final, before) == (None, noisy)
    assert "resident" in tuner.budget.not_reached[0]
    assert "use --budget" in tuner.notes.rows(["resident"])[0]["why"]
    # What is kept for proofs is raced with, as long as there is nothing to prove.
    tuner = faked.tuner(seconds=1000.0)
    tuner.time_plan = replace(tuner.time_plan, second_until=0.0, arm_s=100.0, prove_s=900.0)
    final, _ = stages._later_races(tuner, faked.watched(), [RESIDENT_ALONE], noisy)
    assert final is not None
    tuner = faked.tuner()
    final, _ = stages._later_races(tuner, faked.watched(), [RESIDENT_ALONE], noisy)
    assert len(tuner.trials) == stages._MOST_RACES - 1
    assert final is not None
    races[:] = [({RESIDENT: 1.5}, 0.0)]
    tuner = faked.tuner()
    first = faked.raced({RESIDENT: 1.5})
    stages._later_races(tuner, faked.watched(), [RESIDENT_ALONE], first)
    assert [row.race for row in tuner.trials] == [2]


def test_what_was_hinted_at_is_raced_whatever_the_budget_and_the_rest_is_not_tried(
    races: list[Any],
) -> None:
    races[:] = [({RESIDENT: 1.6}, 0.0)]
    tuner = faked.tuner(seconds=0.001, hints=[Hint(RESIDENT, 1.78, 1.7, 1.8)])
    first = stages._first_races(tuner, faked.watched(), [RESIDENT_ALONE, FUSED_ALONE], hinted=1)
    assert first is not None
    assert "resident" in first.arms
    states = {row["name"]: row["state"] for row in tuner.notes.rows(tuner.known)}
    assert states == {"resident": "no_effect", "optimizer": "not_tried"}
    assert list(tuner.notes.untried) == ["optimizer(implementation=fused)"]
    unhinted = faked.tuner(seconds=0.001)
    assert stages._first_races(unhinted, faked.watched(), [RESIDENT_ALONE], hinted=0) is None
    assert unhinted.notes.rows(["resident"])[0]["state"] == "not_tried"


def test_where_the_first_candidates_gain_nothing_the_next_ones_are_raced(races: list[Any]) -> None:
    tuner = faked.tuner(seconds=1000.0)
    # Of the time before the proofs one candidate would get a race.
    late = replace(tuner.time_plan, arm_s=100.0)
    tuner.time_plan = replace(late, first_until=time.monotonic() + 410.0, second_until=0.0)
    candidates = [RESIDENT_ALONE, FUSED_ALONE]
    races[:] = [({RESIDENT: 1.0}, 0.0), ({FUSED: 1.0}, 0.0)]
    last = stages._first_races(tuner, faked.watched(), candidates, hinted=0)
    assert last is not None and tuner.notes.untried == {}
    assert [row.plan for row in tuner.trials] == [RESIDENT, FUSED]
    # What looks faster is not delayed by what may be.
    tuner.trials.clear()
    races[:] = [({RESIDENT: 1.5}, 0.0), ({FUSED: 1.0}, 0.0)]
    stages._first_races(tuner, faked.watched(), candidates, hinted=0)
    assert [row.plan for row in tuner.trials] == [RESIDENT]
    assert list(tuner.notes.untried) == [FUSED_ALONE.name]


def test_hints_come_first_also_where_they_are_no_candidate_and_else_say_why() -> None:
    tuner = faked.tuner()
    workers = Plan({"workers": {"count": 2}})
    flags = (faked.FACTS, tuner.host, tuner.known, Numerics.EXACT)
    hints = [Hint(p, 1.5, 1.4, 1.6) for p in (workers, RESIDENT, FUSED, BOTH, Plan({"replay": {}}))]
    found, count, reasons = put_first([FUSED_ALONE, RESIDENT_ALONE], hints, *flags)
    assert [c.name for c in found] == [
        "workers(count=2)",
        "resident",
        "optimizer(implementation=fused)",
    ]
    assert count == 3
    assert "not among those" in reasons[str(Plan({"replay": {}}))]
    assert "one technique" in reasons[str(BOTH)]
    _, count, reasons = put_first([], [Hint(FUSED, 1.5, 1.4, 1.6)], *flags)
    assert count == 0
    assert "`exact` or better" in reasons[str(FUSED)]


def test_the_state_of_a_technique_is_what_says_most_of_it() -> None:
    notes = Notes()
    two = Candidate("workers", {"count": 2}, Numerics.EXACT)
    one = Candidate("workers", {"count": 1}, Numerics.EXACT)
    first = faked.raced({two.plan(): 0.8, one.plan(): 0.9})
    broken = Arm("x", one.plan(), faked.LAB, failed="it crashed")
    notes.note_race(two, broken, first)
    assert notes.rows(["workers"])[0]["state"] == "refused"
    notes.note_untried([one], "the budget is too short")
    assert notes.rows(["workers"])[0]["state"] == "not_tried"
    notes.note_race(two, first.arms[two.name], first)
    (row,) = notes.rows(["workers"])
    assert row["state"] == "no_effect"
    assert "0.80x" in row["why"]
    assert row["why"].endswith("not tried: workers(count=1)")
    notes.note_race(one, first.arms[one.name], first)
    assert "0.90x" in notes.rows(["workers"])[0]["why"]
    # What was raced in one process already is missing in fresh ones only.
    fused = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
    notes.note_live(fused, Decision((0,), "undecided", Ratio(1.7, 0.6, 3.7, 4)))
    notes.note_untried([fused], "the budget is too short")
    assert notes.rows(["optimizer"])[0]["why"].endswith(
        ", undecided after 4 rounds; not tried alone in fresh processes: "
        "optimizer(implementation=fused)"
    )
    late = Arm("x", RESIDENT, faked.LAB, failed="it was not ready after 5 s", is_late=True)
    notes.note_race(RESIDENT_ALONE, late, first)
    assert notes.rows(["resident"])[0]["state"] == "not_tried"


def test_what_the_chosen_plan_proved_overrules_a_watch_that_ended_too_early() -> None:
    notes = Notes()
    early = faked.proofs(RESIDENT, "no_effect")
    notes.note_chosen(RESIDENT, faked.proofs(RESIDENT), early)
    assert notes.rows(["resident"])[0]["state"] == "applied"
    whole = [{**faked.proofs(RESIDENT)[0], "why": "90 batches served"}]
    notes.note_chosen(RESIDENT, faked.proofs(RESIDENT), whole)
    assert notes.rows(["resident"])[0]["why"] == "90 batches served"
    assert {row["state"] for row in notes.rows(["resident"])} <= set(STATES)


def test_what_gained_alone_and_is_not_in_the_plan_says_why() -> None:
    notes = Notes()
    fused = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
    workers = Candidate("workers", {"count": 1}, Numerics.EXACT)
    notes.note_live(fused, Decision((0,), "faster", Ratio(1.2, 1.1, 1.3, 12)))
    notes.note_live(workers, Decision((1,), "not_faster", Ratio(1.01, 0.9, 1.02, 12)))
    notes.note_chosen(RESIDENT, faked.proofs(RESIDENT), [])
    gained, lost = notes.rows(["optimizer", "workers"])
    assert gained["why"].endswith("; not found to gain in addition to resident")
    assert lost["why"].endswith(", no gain")


def test_without_time_for_a_proof_nothing_is_proven_and_it_says_so() -> None:
    tuner = faked.tuner(seconds=3)
    final = faked.raced({RESIDENT: 1.5})
    assert proofs.prove(tuner, final, final) == []
    assert "no time was left to prove it: use --budget" in tuner.notes.unproven


def test_the_fastest_plan_is_proven_first_and_an_exact_one_if_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proof takes 3 s here, that of the fastest plan and the plain run 7.5 s."""

    class Prover(Proofs):
        def __init__(self, lab: Any, *args: Any, **options: Any) -> None:
            super().__init__(resident="exact", optimizer_resident="rounding")

        def prove(self, plan: Plan) -> Verdict:
            tuner.budget.seconds -= 7.5
            return super().prove(plan)

    monkeypatch.setattr(proofs, "Prover", Prover)
    final = faked.raced({RESIDENT: 1.5, BOTH: 2.0})
    for seconds, expected in ((100, ["exact", "rounding"]), (9, ["rounding"])):
        tuner = faked.tuner(seconds)
        assert [rung.tier for rung in proofs.prove(tuner, final, final)] == expected
    # What is exact and faster needs no proof of a weaker tier beside it.
    final = faked.raced({RESIDENT: 2.0, BOTH: 1.5})
    tuner = faked.tuner()
    assert [rung.tier for rung in proofs.prove(tuner, final, final)] == ["exact"]


def test_a_budget_of_a_second_watches_the_script_once_and_starts_no_trial_more() -> None:
    script = Script(path=str(TINY), args=("--epochs", "3000"), cwd=str(TINY.parent))
    said: list[str] = []
    with Lab(script) as lab:
        begin = time.monotonic()
        found = stages.tune(lab, Host.detect(), budget_s=1.0, progress=said.append)
        took = time.monotonic() - begin
        assert len(lab.trials) == 1
        started = lab.trials[0]
    assert took < found.trace.setup_s + 10
    assert started.plan == Plan()
    assert "up to 60 s" in said[0] and said[0].endswith(" s left)")
    assert found.outcome == "could_not_tell"
    assert found.not_tried
    assert found.trials == ()
    assert not found.gained


def test_a_race_goes_on_only_while_turns_may_tell_more() -> None:
    wide = faked.raced({RESIDENT: 1.1}, wobble=0.3)
    assert wide.ratio("resident").low < 1.02
    assert racing._more_may_tell(wide, 0.0)
    assert not racing._more_may_tell(wide, 0.2)
    assert not racing._more_may_tell(faked.raced({RESIDENT: 1.5}), 0.0)
    assert not racing._more_may_tell(faked.raced({RESIDENT: 1.0}), 0.0)
    wide.arms["resident"].techniques[0]["state"] = "no_effect"
    assert not racing._more_may_tell(wide, 0.0)
