"""Live candidates are raced and combined in one process; what gained there is confirmed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from hotlap.errors import TrialError
from hotlap.lab.arm import Arm
from hotlap.lab.decisions import Combination, Decision, State
from hotlap.lab.duel import Race
from hotlap.lab.observing import Observation
from hotlap.lab.statistics import Ratio
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.tuning import live_races, proofs, racing
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.confirming import confirm
from hotlap.tuning.live_races import LiveRaces, race_live
from hotlap.tuning.ranking import fastest_first
from tests.tuning import faked

RESIDENT = Candidate("resident", {}, Numerics.EXACT)
WORKERS = Candidate("workers", {"count": 2}, Numerics.EXACT)
FOREACH = Candidate("optimizer", {"implementation": "foreach"}, Numerics.ROUNDING)
FUSED = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
ONE = Candidate("threads", {"count": 1}, Numerics.ROUNDING)
HEAP = Candidate("host_allocator", {}, Numerics.EXACT)
ALL = [RESIDENT, FOREACH, WORKERS, FUSED, ONE]
LIVE = [RESIDENT, FOREACH, FUSED, ONE]
"""As they are numbered in the process."""


class Process:
    """A live process in which each combination takes so many ms a step."""

    ms: Mapping[Combination, float]
    failed: Mapping[int, str]
    raced_by_all: list[list[Combination]]

    slowed = 1.0

    def __init__(self, lab: Any, techniques: Sequence[Plan], **options: Any) -> None:
        del lab
        assert list(techniques) == [candidate.plan() for candidate in LIVE]
        self.options = options
        self.raced: list[tuple[Combination, list[Combination]]] = []

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def race(self, arms: Sequence[Combination], *, base: Combination = (), **options: Any) -> Race:
        del options
        self.raced.append((base, list(arms)))
        self.raced_by_all.append(list(arms))
        decisions = [self._decision(on, self.ms[base] / self.ms.get(on, 4.0)) for on in arms]
        return Race(tuple(decisions), Ratio(1.0, 0.99, 1.01, 12), 12, 1.0)

    def against(self, on: Combination, base: Combination) -> Decision:
        rounds = sum(base in (row[0], *row[1]) and on in (row[0], *row[1]) for row in self.raced)
        found = self._decision(on, self.ms.get(base, 4.0) / self.ms.get(on, 4.0))
        return found if rounds else Decision(on, "undecided")

    def _decision(self, on: Combination, ratio: float) -> Decision:
        for number in on:
            if number in self.failed:
                return Decision(on, "failed", None, self.failed[number])
        state: State = "faster" if ratio > 1.015 else "not_faster"
        return Decision(on, state, Ratio(ratio, ratio - 0.01, ratio + 0.01, 12))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> type[Process]:
    Process.ms, Process.failed, Process.raced_by_all = {(): 4.0}, {}, []
    monkeypatch.setattr(live_races, "Duel", Process)
    return Process


def watched(step_ms: float = 4.0, planned_steps: int = 100_000) -> Observation:
    return faked.watched(step_ms, planned_steps=planned_steps)


def found(tuner: Any = None) -> LiveRaces:
    races = race_live(tuner or faked.tuner(), watched(), ALL)
    assert races is not None
    return races


def test_the_fastest_is_taken_and_whatever_makes_it_faster_is_added(
    process: type[Process],
) -> None:
    # Fused alone hides behind the feed; foreach is faster alone, and not in combination.
    process.ms = {(): 4.0, (0,): 2.0, (1,): 3.8, (2,): 3.97, (0, 1): 1.98, (0, 2): 1.6}
    process.ms |= {(3,): 6.0, (0, 3): 1.0, (0, 2, 3): 1.0}
    tuner = faked.tuner()
    races = found(tuner)
    both = RESIDENT.plan().with_technique("optimizer", implementation="fused")
    assert list(races.finalists) == [both, RESIDENT.plan()]
    assert races.finalists[both].median == pytest.approx(4.0 / 1.6)
    assert races.rest == [WORKERS]
    rows = {str(row.plan): row.speedup.median for row in tuner.trials if row.speedup}
    assert rows[str(both)] == pytest.approx(2.5) and {row.race for row in tuner.trials} == {0}
    # What slows the run down by a third alone is not tried in combination, though it would gain.
    assert rows["threads(count=1)"] == pytest.approx(0.667, abs=0.01)
    assert "no gain" in tuner.notes.rows(["threads"])[0]["why"]


def test_what_beats_the_fastest_is_confirmed_though_the_plain_script_left_the_race_early(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    process.ms = {(): 4.0, (0,): 2.0, (1,): 3.8, (0, 1): 1.6}
    both = RESIDENT.plan().with_technique("optimizer", implementation="foreach")
    against = Process.against

    def few(self: Process, on: Combination, base: Combination) -> Decision:
        return replace(against(self, on, base), state="undecided" if len(on) > 1 else "faster")

    monkeypatch.setattr(Process, "against", few)
    monkeypatch.setattr(live_races, "_MOST_SHARE", 0.0)
    assert list(found().finalists) == [both, RESIDENT.plan()]
    # Control: what has not beaten the fastest in turns with it is not confirmed.
    process.ms = {**process.ms, (0, 1): 2.0}
    assert both not in found().finalists


def test_what_each_gave_alone_is_kept_if_the_races_are_interrupted(
    process: type[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    process.ms = {(): 4.0, (0,): 2.0, (1,): 3.8, (2,): 3.97, (3,): 6.0}
    tuner = faked.tuner()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(live_races._Races, "_combine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found(tuner)
    assert tuner.kept.decisions[RESIDENT.plan()].state == "faster"


def test_what_became_useless_is_taken_out(process: type[Process]) -> None:
    process.ms = {(): 4.0, (3,): 3.0, (0,): 3.5, (0, 3): 2.0, (0, 1): 3.4, (0, 2): 3.4}
    process.ms |= {(0, 1, 3): 1.5, (0, 2, 3): 1.9, (0,): 3.5, (1, 3): 1.0, (2, 3): 2.9}
    assert (
        str(next(iter(found().finalists))) == "optimizer(implementation=foreach), threads(count=1)"
    )


def test_nothing_is_confirmed_where_nothing_gains_and_what_is_refused_is_said(
    process: type[Process],
) -> None:
    process.failed = {0: "reading a sample draws from torch"}
    tuner = faked.tuner()
    races = found(tuner)
    assert not races.finalists and races.rest == [WORKERS]
    (row,) = tuner.notes.rows(["resident"])
    assert (row["state"], row["why"]) == ("refused", "reading a sample draws from torch")


def test_a_process_that_cannot_be_raced_leaves_all_to_fresh_ones(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    # A budget that hardly suffices for anything else is not spent here.
    assert race_live(faked.tuner(seconds=1), watched(), ALL) is None
    assert race_live(faked.tuner(), watched(), [WORKERS]) is None

    def fails(self: Process) -> Any:
        raise TrialError("it crashed", reason="crashed")

    monkeypatch.setattr(process, "__enter__", fails)
    assert race_live(faked.tuner(), watched(), ALL) is None


def confirmed(
    monkeypatch: pytest.MonkeyPatch, *fresh: tuple[float, float], seconds: float = 1000.0
) -> tuple[Any, Any]:
    """Confirm 1.2x of `resident`, where fresh processes give such speeds, twins so far apart."""
    given = list(fresh)

    def race(arms: Sequence[Arm], **options: Any) -> Any:
        del options
        speed, apart = given.pop(0) if len(given) > 1 else given[0]
        plans = [arm.plan for arm in arms if arm.plan]
        made = faked.raced(dict.fromkeys(plans, speed), apart=apart)
        arms_of = {str(arm.plan): made.arms[faked.name_of(arm.plan)] for arm in arms if arm.plan}
        for name, arm in arms_of.items():
            arm.name = name
        twins = {name: made.arms[name] for name in made.twins}
        return type(made)({**twins, **arms_of}, made.twins, made.rounds, made.steps_per_turn)

    monkeypatch.setattr(racing, "race", race)
    tuner = faked.tuner(seconds)
    tuner.live = {RESIDENT.plan(): Ratio(1.2, 1.19, 1.21, 12)}
    races = LiveRaces(tuner.live, [WORKERS, HEAP])
    return tuner, confirm(tuner, faked.watched(), races)


def test_half_of_a_live_gain_in_fresh_processes_confirms_it_however_noisy_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner, final = confirmed(monkeypatch, (1.12, 0.3))
    assert tuner.floor > 0.3
    assert fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm()) == ["resident"]
    assert fastest_first(final, tuner.floor) == []
    assert [str(row.plan) for row in tuner.trials] == ["resident", "host_allocator, resident"]
    (row,) = tuner.notes.rows(["workers"])
    assert row["why"] == "workers(count=2): it cannot be combined with resident"


def test_a_live_gain_within_the_noise_of_its_own_race_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fresh processes are too noisy to show 1.12x, and in one process 1.19x was the least."""
    tuner, final = confirmed(monkeypatch, (1.12, 0.3))
    for floor, ranked in ((0.18, ["resident"]), (0.2, [])):
        tuner.live_floor = floor
        assert fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm()) == ranked


@pytest.mark.parametrize(
    ("gains", "wobble", "is_confirmed"),
    [(1.0, 0.1, True), (0.7, 0.1, False)],
)
def test_of_what_acts_late_young_processes_show_that_it_is_no_slower(
    monkeypatch: pytest.MonkeyPatch, gains: float, wobble: float, is_confirmed: bool
) -> None:
    tuner, final = confirmed(monkeypatch, (gains, wobble), (gains, wobble))
    tuner.early_gains = {RESIDENT.plan(): 1.0}
    ranked = fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm())
    assert ranked == ["resident"] * is_confirmed
    # Control: what should show at once has to.
    tuner.early_gains = {}
    assert fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm()) == []


def test_the_noise_floor_beside_a_speedup_is_that_of_its_own_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner, final = confirmed(monkeypatch, (1.12, 0.3))
    tuner.live_floor = 0.01
    verdict = Verdict("exact", "it was given", 100)
    monkeypatch.setattr(proofs, "_find_known", lambda *_: verdict)
    proven = proofs.prove_tier(tuner, Mock(), final, ["resident"], "exact", [])
    assert proven is not None
    assert (proven.speedup, proven.floor) == (tuner.live[RESIDENT.plan()], 0.01)
    tuner.floor = 0.02
    fresh = proofs.prove_tier(
        tuner, Mock(), faked.raced({RESIDENT.plan(): 1.5}), ["resident"], "exact", []
    )
    assert fresh is not None
    assert (fresh.speedup.median, fresh.floor) == (pytest.approx(1.5, rel=0.02), 0.02)


def test_less_than_half_of_it_is_raced_once_more_and_is_no_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner, final = confirmed(monkeypatch, (1.05, 0.3), (1.05, 0.3))
    assert [row.race for row in tuner.trials] == [2, 2, 3]
    assert fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm()) == []
    tuner, final = confirmed(monkeypatch, (1.05, 0.3), (1.15, 0.3))
    assert fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm()) == ["resident"]


def test_where_time_is_short_the_fastest_alone_is_confirmed_beside_two_plain_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An arm takes 4 s here, and the races end after 0.6 of the budget."""
    both = RESIDENT.plan().with_technique("optimizer", implementation="fused")
    live = LiveRaces({both: Ratio(1.6, 1.5, 1.7, 12), RESIDENT.plan(): Ratio(1.2, 1, 1, 12)}, [])
    raced: list[tuple[int, list[str]]] = []

    def race(arms: Sequence[Arm], *, twins: Sequence[str], **options: Any) -> Any:
        del options
        plans = [arm.plan for arm in arms if arm.plan]
        raced.append((len(twins), [str(plan) for plan in plans]))
        made = faked.raced(dict.fromkeys(plans, 1.6))
        arms_of = {str(plan): made.arms[faked.name_of(plan)] for plan in plans}
        twins_of = {name: made.arms[name] for name in twins}
        return replace(made, arms={**twins_of, **arms_of}, twins=tuple(twins))

    monkeypatch.setattr(racing, "race", race)
    for seconds in (100, 30, 21):
        tuner = faked.tuner(seconds)
        tuner.live = live.finalists
        confirm(tuner, faked.watched(), live)
    names = [str(both), "resident"]
    assert raced == [(3, names), (2, names), (2, names[:1])]


def test_where_there_is_no_time_to_confirm_a_budget_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner, final = confirmed(monkeypatch, (1.2, 0.0), seconds=10.0)
    assert final is None and tuner.trials == []
    assert "fresh processes of resident" in tuner.budget.not_reached[0]
    assert tuner.notes.untried["host_allocator"].endswith(tuner.budget.option)


def test_steps_too_slow_to_decide_anything_are_left_to_fresh_processes(
    process: type[Process],
) -> None:
    assert race_live(faked.tuner(), watched(4.0), ALL) is not None
    assert race_live(faked.tuner(seconds=60), watched(4000.0), ALL) is None


def test_slow_steps_are_raced_a_few_plans_at_a_time(process: type[Process]) -> None:
    tuner = faked.tuner(seconds=52)
    process.ms = {(): 100.0, (0,): 50.0, (0, 1): 50.0, (0, 2): 50.0, (0, 3): 50.0}
    process.ms |= {(1,): 100.0, (2,): 99.0, (3,): 98.0}
    races = race_live(tuner, watched(100.0), ALL)
    assert races is not None and list(races.finalists) == [RESIDENT.plan()]
    # Those for which there was no time alone are tried beside the one that gains.
    first, second, *_ = process.raced_by_all
    assert first == [(0,), (1,)] and {(0, 1), (0, 2), (0, 3)} <= set(second)
    race_live(faked.tuner(seconds=600), watched(100.0), ALL)
    assert [(0,), (1,), (2,), (3,)] in process.raced_by_all


def test_what_only_looks_faster_gets_more_turns_and_these_count_together(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    process.ms = {(): 4.0, (0,): 3.0}
    race = process.race

    def undecided(self: Any, arms: Any, **options: Any) -> Race:
        made = race(self, arms, **options)
        rows = [
            replace(d, state="undecided", odds=9.0, ratio=replace(d.ratio, low=low))
            for d in made.decisions
            if d.ratio is not None
        ]
        return replace(made, decisions=tuple(rows))

    monkeypatch.setattr(process, "race", undecided)
    low = 0.99
    tuner = faked.tuner()
    races = found(tuner)
    assert list(races.finalists) == [RESIDENT.plan()]
    assert process.raced_by_all[1] == [(0,)]
    assert races.rest[0] == WORKERS
    assert [str(row.plan) for row in tuner.trials].count("resident") == 1
    # What surely looks faster is combined with others at once.
    process.raced_by_all.clear()
    process.ms = {**process.ms, (0, 1): 3.0, (0, 2): 3.0}
    low = 1.1
    found()
    assert process.raced_by_all[1] != [(0,)]


def test_a_script_whose_steps_are_used_up_ends_the_races(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    process.ms = {(): 4.0, (0,): 2.0, (0, 2): 1.0}
    race = process.race

    def used_up(self: Any, arms: Any, **options: Any) -> Race:
        if len(self.raced) > 20:
            raise AssertionError("it never ends")
        made = race(self, arms, **options)
        if len(self.raced) <= 2:
            return made
        rows = [Decision(each.on, "undecided") for each in made.decisions]
        return Race(tuple(rows), None, 0, 0.0)

    def nothing(self: Any, on: Any, base: Any) -> Decision:
        return Decision(on, "undecided")

    monkeypatch.setattr(process, "race", used_up)
    monkeypatch.setattr(process, "against", nothing)
    assert list(found().finalists) == [RESIDENT.plan()]


def test_a_process_with_too_few_steps_left_is_not_raced(process: type[Process]) -> None:
    assert race_live(faked.tuner(), watched(planned_steps=100_000), ALL) is not None
    assert race_live(faked.tuner(), watched(planned_steps=300), ALL) is None


def test_what_gains_alone_is_kept_where_the_combination_is_not_decided(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    process.ms = {(): 4.0, (0,): 2.0, (0, 2): 1.5}
    decide = process._decision

    def undecided(self: Any, on: Any, ratio: float) -> Decision:
        said = decide(self, on, ratio)
        return Decision(on, "undecided", said.ratio) if len(on) == 2 else said

    monkeypatch.setattr(process, "_decision", undecided)
    assert list(found().finalists) == [RESIDENT.plan()]


def test_what_only_looks_faster_gets_turns_until_it_is_decided(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    """As beside a busy process: it takes 15 races of a second each."""
    process.ms = {(): 4.0, (0,): 2.0}
    race, against = process.race, process.against

    def likely(self: Any, arms: Any, **options: Any) -> Race:
        said = race(self, arms, **options)
        rows = [
            replace(row, state="undecided", odds=99.0 if row.on == (0,) else 1.0)
            for row in said.decisions
        ]
        return Race(tuple(rows), said.placebo, 3, 1.0)

    def at_last(self: Any, on: Any, base: Any) -> Decision:
        said = against(self, on, base)
        return said if len(self.raced) >= 15 else replace(said, state="undecided")

    monkeypatch.setattr(process, "race", likely)
    monkeypatch.setattr(process, "against", at_last)
    assert list(found().finalists) == [RESIDENT.plan()]
    assert found(faked.tuner(seconds=60)).finalists
    assert not found(faked.tuner(seconds=28)).finalists


def test_a_technique_is_also_tried_in_the_place_of_one_that_it_excludes(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    process.ms = {(): 4.0, (0,): 2.0, (1,): 3.0, (2,): 3.9, (3,): 8.0, (0, 1): 1.6, (0, 2): 1.7}
    raced: list[tuple[Combination, list[Combination]]] = []
    race = process.race

    def noted(self: Any, arms: Any, **options: Any) -> Race:
        raced.append((options.get("base", ()), list(arms)))
        return race(self, arms, **options)

    monkeypatch.setattr(process, "race", noted)
    found()
    assert raced[1] == ((0,), [(0, 1), (0, 2), ()])
    assert raced[2] == ((0, 1), [(0, 2), (1,), (0,), ()])


def test_what_only_looks_faster_is_decided_against_the_plain_script(
    monkeypatch: pytest.MonkeyPatch, process: type[Process]
) -> None:
    process.ms = {(): 4.0, (0,): 2.0, (3,): 3.0}
    race = process.race
    alone: State = "undecided"

    def later(self: Any, arms: Any, **options: Any) -> Race:
        found = race(self, arms, **options)
        rows = [
            Decision(row.on, alone if row.on == (0,) and len(arms) > 2 else row.state, row.ratio)
            for row in found.decisions
        ]
        return Race(tuple(rows), found.placebo, found.rounds, 1.0)

    monkeypatch.setattr(process, "race", later)
    races = found()
    assert list(races.finalists) == [RESIDENT.plan()]
    assert RESIDENT in races.rest


def test_what_is_exact_is_a_finalist_where_the_fastest_has_no_part_of_it(
    process: type[Process],
) -> None:
    """Of a script whose steps cannot be repeated nothing else can be proven."""
    process.ms = {(): 4.0, (0,): 3.0, (1,): 3.9, (2,): 2.0, (0, 2): 2.5}
    assert list(found().finalists) == [FUSED.plan(), RESIDENT.plan()]
    # What is exact itself needs no other.
    process.ms = {(): 4.0, (0,): 2.0, (1,): 3.9, (2,): 3.0, (0, 2): 2.5}
    assert list(found().finalists) == [RESIDENT.plan()]
