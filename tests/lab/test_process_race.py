"""Races of real processes."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab import process_race
from hotlap.lab.arm import Arm, start_all
from hotlap.lab.process_race import Race, race
from hotlap.lab.trial import Lab
from hotlap.plan import Plan

LAB: Any = SimpleNamespace(subject="train.py")
TINY = Path(__file__).parents[1] / "tiny.py"


def script(*args: str) -> Script:
    return Script(path=str(TINY), args=args, cwd=str(TINY.parent))


def test_arms_take_turns_and_a_failing_plan_is_left_out_with_its_reason() -> None:
    with Lab(script("--epochs", "1000")) as lab, Lab(script("--fault", "crash")) as broken:
        arms = [
            Arm("plain", Plan(), lab),
            Arm("resident", Plan({"resident": {}}), lab),
            Arm("broken", Plan(), broken),
            Arm("plain again", Plan(), lab),
        ]
        found = race(arms, twins=("plain", "plain again"), rounds=4, turn_s=0.05)
    assert set(found.arms) == {"plain", "plain again", "resident"}
    assert all(len(arm.turns_ms) == found.rounds == 4 for arm in found.arms.values())
    assert all(len(arm.means_ms) == 4 for arm in found.arms.values())
    assert found.floor >= 0.02
    assert found.arms["resident"].techniques[0]["state"] == "applied"
    assert arms[2].failed is not None


@pytest.mark.slow
def test_an_arm_far_slower_than_the_plain_run_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotlap.lab.arm._GIVEN_UP_S", 1.0)
    begin = time.monotonic()
    with (
        Lab(script("--epochs", "1000")) as lab,
        Lab(script("--epochs", "1000", "--fault", "hang_later")) as stuck,
    ):
        arms = [
            Arm("stuck", Plan(), stuck),
            Arm("plain", Plan(), lab),
            Arm("plain again", Plan(), lab),
        ]
        found = race(arms, twins=("plain", "plain again"), rounds=3, turn_s=0.05)
    assert set(found.arms) == {"plain", "plain again"}
    assert arms[0].failed is not None
    assert "30 steps took more than" in arms[0].failed
    assert arms[0].is_slow
    assert time.monotonic() - begin < 30


def test_a_script_too_short_to_measure_says_so() -> None:
    with Lab(script("--epochs", "2")) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        with pytest.raises(TrialError, match="3 steps, too few"):
            race(arms, twins=("plain", "plain again"), rounds=8, turn_s=0.1, planned_steps=3)


@pytest.mark.slow
@pytest.mark.parametrize(("turn_s", "rounds"), [(0.1, 3), (1.0, 3)])
def test_a_script_that_ends_before_its_loops_say_is_raced_in_the_steps_that_it_has(
    turn_s: float, rounds: int
) -> None:
    # Of 64 steps the first 35 warm up: a turn has 10, or 100, which no process has.
    with Lab(script("--epochs", "4")) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        found = race(
            arms,
            twins=("plain", "plain again"),
            rounds=rounds,
            turn_s=turn_s,
            planned_steps=5000,
            step_ms=10.0,
        )
    assert (found.rounds, found.ended_after) == (rounds, 64)
    assert all(len(arm.turns_ms) == rounds for arm in found.arms.values())


@pytest.mark.slow
@pytest.mark.parametrize("planned", [16, None])
def test_a_script_too_short_for_its_turns_is_started_again(planned: int | None) -> None:
    # Where nobody knows its length, the third turn finds the script at its end.
    epochs = "1" if planned else "4"
    with Lab(script("--epochs", epochs)) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        found = race(
            arms,
            twins=("plain", "plain again"),
            rounds=3,
            turn_s=0.1,
            planned_steps=planned,
            step_ms=2.0 if planned else 10.0,
        )
        assert len(lab.trials) > 2
    assert found.rounds == 3
    assert all(len(arm.turns_ms) == 3 for arm in found.arms.values())


class Stub:
    """A lab whose processes answer at once, and which knows how many there are."""

    subject = "train.py"
    plain_start_s = 0.0

    def __init__(self) -> None:
        self.alive: list[Any] = []
        self.most = self.started = self.starting = self.most_starting = 0

    def start(self, role: str, plan: Plan, **_: Any) -> Any:
        trial = SimpleNamespace(send=lambda *_, **__: None, resume=int, pause=int)
        trial.message = lambda kinds, timeout_s: self._answer(kinds[0], plan)
        trial.kill = lambda: trial in self.alive and self.alive.remove(trial)
        self.alive.append(trial)
        self.started += 1
        self.most = max(self.most, len(self.alive))
        return trial

    def _answer(self, kind: str, plan: Plan) -> dict[str, Any]:
        if kind == "ready":
            self.starting += 1
            self.most_starting = max(self.most_starting, self.starting)
            time.sleep(0.02)
            self.starting -= 1
            return {"setup_s": 0.1}
        ms = 1.0 if plan else 2.0
        turn = {"ms": 10 * ms, "median_ms": ms, "whole_ms": 12 * ms, "steps": 10}
        return {**turn, "techniques": [], "peak_bytes": 7}


@pytest.mark.parametrize("at_once", [None, 3, 2, 0])
def test_no_more_processes_than_fit_on_a_device_are_there_at_once(
    at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotlap.lab.arm.affinity", lambda: 3)
    lab: Any = Stub()
    arms = [
        Arm("plain", Plan(), lab),
        Arm("plain again", Plan(), lab),
        Arm("resident", Plan({"resident": {}}), lab),
    ]
    found = race(arms, twins=("plain", "plain again"), rounds=4, turn_s=0.1, at_once=at_once)
    assert found.rounds == 4
    assert found.ratio("resident").median == pytest.approx(2.0)
    assert not lab.alive
    is_alone = at_once is not None and at_once < 3
    # Warmed up once, and again before each turn.
    assert lab.most == (1 if is_alone else 3)
    assert lab.started == (3 * (1 + 4) if is_alone else 3)
    # On a device nobody takes memory while another one still does.
    assert lab.most_starting == (3 if at_once is None else 1)


@pytest.mark.slow
def test_real_processes_that_do_not_fit_at_once_take_their_turns_alone() -> None:
    alive: list[int] = []

    class Watched(Lab):
        def start(self, *args: Any, **options: Any) -> Any:
            alive.append(sum(trial.is_alive for trial in self.trials))
            return super().start(*args, **options)

    with Watched(script("--epochs", "1000")) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        found = race(arms, twins=("plain", "plain again"), rounds=2, turn_s=0.05, at_once=1)
    assert found.rounds == 2
    assert alive == [0] * 6


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the arms in the order of their turns, in races without processes."""
    names: list[str] = []

    def turn(arm: Arm, steps: int, plain_ms: float | None) -> dict[str, Any]:
        names.append(arm.name)
        if len(arm.turns_ms) >= ENDS_AFTER.get(arm.name, 10**9):
            raise TrialError("came to its own end", reason="ended_early")
        return {"median_ms": 1.0, "ms_per_step": 1.1, "techniques": []}

    monkeypatch.setattr(process_race, "start_all", lambda *_, **__: None)
    monkeypatch.setattr(process_race, "_warm_up", lambda *_: 1.0)
    monkeypatch.setattr(process_race, "take_turn", turn)
    ENDS_AFTER.clear()
    return names


ENDS_AFTER: dict[str, int] = {}
NAMES = ("plain", "plain again", "a", "b", "c")


def faked(seed: int = 0, **options: Any) -> Race:
    arms = [Arm(name, Plan(), LAB) for name in NAMES]
    given: dict[str, Any] = {"rounds": 40, "turn_s": 0.1, "seed": seed, **options}
    return race(arms, twins=NAMES[:2], **given)


def rounds(taken: list[str]) -> list[tuple[str, ...]]:
    return [tuple(taken[k : k + len(NAMES)]) for k in range(0, len(taken), len(NAMES))]


def test_every_round_has_an_order_of_its_own_that_a_seed_repeats(taken: list[str]) -> None:
    found = faked()
    orders = rounds(taken)
    assert found.rounds == len(orders) == 40
    assert all(sorted(order) == sorted(NAMES) for order in orders)
    # Forwards and backwards there would be two.
    assert len(set(orders)) > 20
    for place in range(len(NAMES)):
        assert {order[place] for order in orders} == set(NAMES)
    taken.clear()
    faked()
    assert rounds(taken) == orders
    taken.clear()
    faked(seed=1)
    assert rounds(taken) != orders


def test_a_race_goes_on_until_it_is_settled_or_its_time_or_rounds_are_over(
    taken: list[str],
) -> None:
    def after(count: int) -> Callable[[Race], bool]:
        return lambda so_far: so_far.rounds >= count

    later = time.monotonic() + 60
    assert faked(rounds=7, most_rounds=20, deadline=later, settled=after(9)).rounds == 9
    assert faked(rounds=7, most_rounds=20, deadline=later, settled=after(99)).rounds == 20
    assert faked(rounds=7, most_rounds=20, deadline=time.monotonic()).rounds == 2
    long = {"rounds": 7, "most_rounds": 20, "deadline": later, "settled": after(99)}
    # 35 steps of warm-up, and 10 turns of 10 steps: ten rounds fit.
    short = faked(**long, turn_s=0.01, planned_steps=136)
    assert (short.rounds, short.steps_per_turn) == (10, 10)


def test_turns_of_whole_epochs_are_compared_by_their_means(taken: list[str]) -> None:
    def figures(**options: Any) -> tuple[bool, set[float]]:
        found = faked(turn_s=0.01, step_ms=1.0, rounds=2, **options)
        return found.takes_epochs, {ms for name in NAMES for ms in found.arms[name].turns_ms}

    assert figures(epoch=32) == (True, {1.1})
    assert figures() == (False, {1.0})
    # No epoch fits behind the warm-up of so short a run.
    assert figures(epoch=32, planned_steps=40) == (False, {1.0})


def test_the_end_of_the_script_ends_the_race_and_throws_nobody_out(taken: list[str]) -> None:
    ENDS_AFTER.update(dict.fromkeys(NAMES, 8))
    found = faked()
    assert found.rounds == 8
    assert set(found.arms) == set(NAMES)
    ENDS_AFTER.clear()
    ENDS_AFTER["b"] = 3
    found = faked()
    assert set(found.arms) == set(NAMES) - {"b"}
    assert found.rounds == 40


def test_what_is_ended_because_another_could_not_start_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, str]] = []
    trial: Any = SimpleNamespace(end_with=lambda reason, why: told.append((reason, why)))
    nothing: Any = None
    arms = [Arm("plain", Plan(), nothing, trial=trial), Arm("broken", Plan(), nothing)]

    def start(arm: Arm, *_: Any) -> None:
        if arm.name == "broken":
            raise TrialError("it broke", reason="crashed")

    monkeypatch.setattr("hotlap.lab.arm._start", start)
    with pytest.raises(TrialError, match="it broke"):
        start_all(arms, ("plain",), None, print)
    assert told == [("crashed", "was ended: another one could not be started")]


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_no_more_processes_start_at_the_same_time_than_may(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting: list[str] = []
    most = 0

    def start(arm: Arm, *_: Any) -> None:
        nonlocal most
        starting.append(arm.name)
        most = max(most, len(starting))
        time.sleep(0.05)
        starting.remove(arm.name)

    monkeypatch.setattr("hotlap.lab.arm._start", start)
    nothing: Any = None
    start_all([Arm(str(n), Plan(), nothing) for n in range(4)], (), None, print, at_a_time)
    assert most == at_a_time


@pytest.mark.parametrize(
    ("given", "at_a_time", "plain_first"),
    [({}, None, False), ({"one_by_one": True}, 1, False), ({"at_once": 9}, 1, True)],
)
def test_a_race_starts_its_processes_one_by_one_where_it_has_to(
    given: dict[str, Any],
    at_a_time: int | None,
    plain_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []

    def start_all(*_: Any, **options: Any) -> None:
        seen.append(options)
        raise TrialError("enough", reason="crashed")

    monkeypatch.setattr(process_race, "start_all", start_all)
    monkeypatch.setattr(process_race, "check_length", lambda *_: None)
    with pytest.raises(TrialError, match="enough"):
        race([Arm("plain", Plan(), LAB)], twins=("plain",), rounds=1, turn_s=1.0, **given)
    assert seen == [{"at_a_time": at_a_time, "plain_first": plain_first}]


@pytest.mark.parametrize(("plain_start_s", "waits_s"), [(0.5, 5.0), (4.0, 12.0), (90.0, 270.0)])
def test_a_plan_may_take_longer_to_start_than_the_plain_script(
    plain_start_s: float, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def message(kinds: Any, timeout_s: float) -> Any:
        waited.append(timeout_s)
        raise TrialError("late", reason="timeout")

    trial = SimpleNamespace(message=message, kill=lambda: None, end_with=lambda *_: None)
    lab: Any = SimpleNamespace(start=lambda *_, **__: trial, plain_start_s=plain_start_s)
    start_all([Arm("plan", Plan(), lab)], (), time.monotonic() + 1.0, print)
    with pytest.raises(TrialError, match="late"):
        start_all([Arm("plain", Plan(), lab)], ("plain",), time.monotonic() + 1.0, print)
    assert waited == [pytest.approx(waits_s), max(180.0, waits_s)]
