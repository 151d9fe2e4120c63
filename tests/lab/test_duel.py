"""Techniques are switched in one live process; what is faster is told from what is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as count_up
from itertools import cycle
from math import comb, exp, inf, log
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from hotlap.attach.entry import Script
from hotlap.lab import duel as duel_module
from hotlap.lab.decisions import ratio_of
from hotlap.lab.duel import Duel, _Found
from hotlap.lab.live_turns import Turn
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.trial.evidence import EVIDENCE, WORTH, decide, evidence, odds

HERE = Path(__file__).parent
TECHNIQUES = tuple(
    f"tests.lab.nap_techniques:{name}" for name in ("SHORT", "IDLE", "LONG", "REFUSING")
)


@contextmanager
def live(monkeypatch: pytest.MonkeyPatch, steps: int, *names: str) -> Iterator[Duel]:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    script = Script(path="napping.py", args=(str(steps),), cwd=str(HERE))
    plans = [Plan({name: {}}) for name in names]
    with (
        Lab(script, techniques=TECHNIQUES) as lab,
        Duel(lab, plans, step_ms=4.5, steps=steps, age=5) as duel,
    ):
        yield duel


def test_a_planted_gain_is_found_and_idleness_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with live(monkeypatch, 20_000, "short", "idle", "long", "refusing") as duel:
        assert list(duel.failed) == [3] and "never here" in duel.failed[3]
        race = duel.race([(0,), (1,), (2,), (3,)], seconds=6.0)
        short, idle, long, refusing = race.decisions
        assert short.state == "faster" and short.ratio is not None and short.ratio.low > 1.2
        if idle.state == "faster":
            # By chance it is, once in a few hundred races, but not twice.
            assert duel.race([(1,)], seconds=4.0).of((1,)).state != "faster"
        # Beside other processes it may take longer until that is decided.
        assert long.state != "faster" and long.ratio is not None and long.ratio.median < 0.8
        assert refusing.state == "failed" and refusing.ratio is None
        assert race.placebo is not None and race.placebo.pairs == race.rounds
        # What was a gain alone is the base now, and what is slow is slow beside it, too.
        second = duel.race([(0, 1), (0, 2)], base=(0,), seconds=4.0)
        assert second.of((0, 1)).state != "faster"
        assert second.of((0, 2)).state != "faster"


@pytest.mark.slow
def test_what_was_watched_is_raced_in_the_same_process() -> None:
    script = Script(path="loading.py", args=("1000000",), cwd=str(HERE))
    plans = [Plan({"resident": {}}), Plan({"optimizer": {"implementation": "fused"}})]
    with Lab(script) as lab:
        seen = watch(lab, seconds=0.5, stays=True)
        assert seen.trial is not None and len(seen.trace.steps) > 16
        pids = seen.trial.pids()
        step_ms = seen.trace.step_ms()["median"]
        with Duel(lab, plans, step_ms=step_ms, age=3, trial=seen.trial) as duel:
            assert duel.failed == {}
            race = duel.race([(0,), (1,), (0, 1)], seconds=8.0)
            assert seen.trial.pids() == pids
        assert not seen.trial.is_alive and len(lab.trials) == 1
        assert race.of((0,)).state == "faster" and race.of((0, 1)).state == "faster"
        # Control: reading takes its time again as soon as it is off.
        alone = race.of((1,)).ratio
        assert alone is not None and alone.median < 1.5


@pytest.mark.slow
def test_what_has_ended_or_is_not_to_stay_cannot_be_raced() -> None:
    for steps, stays in (("30", True), ("1000000", False)):
        script = Script(path="loading.py", args=(steps,), cwd=str(HERE))
        with Lab(script) as lab:
            assert watch(lab, seconds=5 if stays else 0.2, epochs=99, stays=stays).trial is None
            assert not lab.trials[0].is_alive


def test_a_script_that_ends_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with live(monkeypatch, 240, "short") as duel:
        race = duel.race([(0,)], seconds=6.0)
    assert 0 < race.rounds < 7
    assert race.decisions[0].state == "undecided"


def found(monkeypatch: pytest.MonkeyPatch, ms: Callable[[Any, int], Turn]) -> Any:
    """Race one technique where each turn takes what `ms` says of what is on and of its number."""
    duel = Duel(cast("Any", None), [Plan({"idle": {}})], step_ms=4.0)
    turns = count_up()
    monkeypatch.setattr(duel._turns, "take", lambda on: ms(on, next(turns)))
    return duel, duel.race([(0,)], seconds=1e9)


def test_a_gain_by_medians_alone_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def ms(on: Any, turn: int) -> Turn:
        noise = 1 + 0.001 * (turn % 7)
        return Turn(2.0 * noise, 4.0 * noise) if on else Turn(4.0 * noise, 4.0 * noise)

    _, race = found(monkeypatch, ms)
    (decision,) = race.decisions
    assert decision.state == "undecided" and "by the means of turns" in decision.why
    # Control: the means agree.
    _, race = found(monkeypatch, lambda on, _: Turn(2.0, 2.0) if on else Turn(4.0, 4.0))
    assert race.decisions[0].state == "faster"


def test_what_is_undecided_costs_little_once_something_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = Random(1)

    def ms(on: Any) -> Turn:
        # The second gains what is just not worth deciding on.
        each = {(): 4.0, (0,): 2.0, (1,): 4.0 / (1 + WORTH)}[on] * exp(noise.gauss(0, 0.05))
        return Turn(each, each)

    def rounds(seconds_if_faster: float) -> int:
        duel = Duel(cast("Any", None), [Plan({"idle": {}})] * 2, step_ms=4.0)
        now = count_up()
        monkeypatch.setattr(duel._turns, "take", ms)
        # A second passes at each look.
        monkeypatch.setattr(duel_module.time, "monotonic", lambda: float(next(now)))
        race = duel.race([(0,), (1,)], seconds=100.0, seconds_if_faster=seconds_if_faster)
        assert race.of((0,)).state == "faster" and race.of((1,)).state == "undecided"
        return race.rounds

    assert rounds(30.0) < 40 < rounds(inf)
    # Not before something is.
    assert rounds(0.0) >= 7


@pytest.mark.parametrize(
    ("waited", "taken", "kept"),
    [
        # What is disturbed is taken again, twice at most; if all are, their median counts.
        ([0.0], 1, 1.0),
        ([0.6, 0.0], 2, 2.0),
        ([0.6, 0.9, 0.2], 3, 2.0),
    ],
)
def test_a_turn_in_which_others_had_the_cores_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, waited: list[float], taken: int, kept: float
) -> None:
    duel = Duel(cast("Any", None), [Plan({"idle": {}})], step_ms=4.0)
    given = iter(enumerate([*waited, None], 1))

    def take(on: Any) -> Turn | None:
        del on
        ms, share = next(given)
        return None if share is None else Turn(float(ms), float(ms), share)

    monkeypatch.setattr(duel._turns, "_take_once", take)
    turn = duel._turns.take(())
    assert turn is not None and turn.median_ms == kept
    assert next(given)[0] == taken + 1


@pytest.mark.parametrize(
    ("waited", "mean_ms", "slowed"),
    [
        # Each second turn is disturbed, and taken again: 4 and 8 ms, where 4 are undisturbed.
        ([0.6, 0.0], {0.6: 8.0, 0.0: 4.0}, 1.5),
        # The machine is quiet, or does not say who waits.
        ([0.0], {0.0: 4.1}, 1.0),
        # Nobody knows what an undisturbed step takes.
        ([0.6], {0.6: 8.0}, 1.0),
    ],
)
def test_how_much_other_processes_slow_steps_follows_from_all_turns(
    monkeypatch: pytest.MonkeyPatch,
    waited: list[float],
    mean_ms: dict[float, float],
    slowed: float,
) -> None:
    duel = Duel(cast("Any", None), [Plan({"idle": {}})], step_ms=4.0)
    assert duel.slowed == 1.0
    shares = cycle(waited)

    def take(on: Any) -> Turn:
        share = next(shares)
        # What is switched on saves half of a step, disturbed or not.
        part = 0.5 if on else 1.0
        return Turn(4.0 * part, mean_ms[share] * part, share)

    monkeypatch.setattr(duel._turns, "_take_once", take)
    for on in [(), (0,)] * 6:
        duel._turns.take(on)
    assert duel.slowed == pytest.approx(slowed)


def test_where_most_turns_are_disturbed_they_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    duel = Duel(cast("Any", None), [Plan({"idle": {}})], step_ms=4.0)
    turns = count_up()
    monkeypatch.setattr(duel._turns, "_take_once", lambda _: Turn(float(next(turns)), 1.0, 0.9))
    for _ in range(14):
        duel._turns.take(())
    before = next(turns)
    duel._turns.take(())
    assert next(turns) == before + 2


@pytest.mark.parametrize("fails", ["on", "off"])
def test_what_cannot_be_switched_is_not_raced(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    duel = Duel(cast("Any", None), [Plan({"idle": {}})] * 2, step_ms=4.0)
    turns = count_up()

    def take(on: Any) -> Turn:
        # In its sixth round; what is not switched off is found out in a turn of another.
        if next(turns) >= 20 and (1 in on) == (fails == "on"):
            duel._turns.note_failures({"failed": {"1": "RuntimeError: no"}})
        ms = 2.0 if 0 in on else 4.0
        return Turn(ms, ms)

    monkeypatch.setattr(duel._turns, "take", take)
    race = duel.race([(0,), (1,)], seconds=1e9)
    assert race.of((1,)).state == "failed" and race.of((1,)).why == "RuntimeError: no"
    assert (race.of((0,)).state == "faster") == (fails == "on") != race.is_over


def test_a_base_that_differs_from_itself_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    duel, race = found(monkeypatch, lambda on, _: Turn(2.0, 2.0) if on else Turn(4.0, 4.0))
    assert race.decisions[0].state == "faster"
    steps = duel.steps_per_turn
    monkeypatch.setattr(_Found, "is_void", property(lambda self: self.rounds > 0))
    (decision,) = duel.race([(0,)], seconds=1e9).decisions
    assert decision.state == "undecided" and "differed from itself" in decision.why
    assert duel.steps_per_turn == 2 * steps


def test_without_time_to_race_again_it_is_said_that_the_base_differed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    duel, _ = found(monkeypatch, lambda on, _: Turn(2.0, 2.0) if on else Turn(4.0, 4.0))
    monkeypatch.setattr(_Found, "is_void", property(lambda self: self.rounds > 0))
    # One round is taken, and the time is over before another one.
    times = iter([0.0, 0.5, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr("hotlap.lab.duel.time.monotonic", lambda: next(times, 2.0))
    steps = duel.steps_per_turn
    race = duel.race([(0,)], seconds=1.0, least_rounds=9)
    (decision,) = race.decisions
    assert race.rounds == 1 and race.placebo is not None
    assert decision.state == "undecided" and "differed from itself" in decision.why
    assert duel.steps_per_turn == steps


def test_evidence_grows_with_agreement_and_is_a_fair_bet() -> None:
    assert evidence(0, 0) == 1
    assert evidence(9, 9) > 100 > evidence(8, 8)
    assert evidence(14, 13) > 100 > evidence(14, 12)
    # Under no gain it is a bet that wins nothing in the mean.
    for count in (1, 5, 30):
        mean = sum(comb(count, k) * evidence(count, k) for k in range(count + 1)) / 2**count
        assert mean == pytest.approx(1.0)


def test_a_second_turn_of_the_base_lets_fewer_rounds_decide() -> None:
    assert evidence(6, 6, of=3) > 100 > evidence(5, 5, of=3)
    for count in (1, 5, 30):
        chances = [comb(count, k) * 2 ** (count - k) / 3**count for k in range(count + 1)]
        won = [evidence(count, k, of=3) for k in range(count + 1)]
        mean = sum(chance * each for chance, each in zip(chances, won, strict=True))
        assert mean == pytest.approx(1.0)
    gain, idle, loss = [0.1] * 8, [0.001, -0.002] * 4, [-0.1] * 8
    placebos = [0.002, -0.001] * 4
    assert decide(gain, 500.0, placebos) == "faster" and decide(gain, 500.0) is None
    for none in (idle, loss):
        assert decide(none, 500.0, placebos) == "not_faster" and decide(none, 500.0) is None
    # No gain: a base whose own second turn differs from it by as much.
    assert decide(gain, 5.0, [0.2] * 8) is None
    # Rounds without one count as they did.
    assert odds(gain, [None] * 8) == (evidence(8, 8), evidence(8, 0))
    # However many rounds there are.
    assert evidence(2000, 2000) == inf


@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_what_does_nothing_is_hardly_ever_decided_to_be_faster(spread: float) -> None:
    """Also where its turns vary five times as much as those of what it is compared with."""
    noise = Random(3)
    false, each = 0, (0.2, 0.2, 0.2 * spread)
    for _ in range(1000):
        # Turns that differ by far more than what is decided on, in a race of 30 rounds.
        turns = [[noise.lognormvariate(0, sigma) for sigma in each] for _ in range(30)]
        logs, placebos = [log(a / c) for a, _, c in turns], [log(a / b) for a, b, _ in turns]
        false += any(
            decide(logs[:n], EVIDENCE, placebos[:n]) == "faster" for n in range(1, len(turns) + 1)
        )
    assert false <= (5 if spread == 1.0 else 30)


def test_the_interval_is_wide_until_there_is_evidence() -> None:
    logs = [log(1.5 + 0.01 * number) for number in range(8)]
    early = ratio_of(logs)
    assert (early.low, early.high) == (pytest.approx(1.5), pytest.approx(1.57))
    assert early.median == pytest.approx(1.535, rel=1e-3)
    late = ratio_of([log(1.5 + 0.01 * (number % 8)) for number in range(64)])
    assert early.low < late.low < late.high < early.high
