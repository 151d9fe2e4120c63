"""A sampler gives the time of a loop to its statements, also where Python's lock is held."""

import copy
import gc
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from hotlap.trace.clock import FORWARD, OTHER, PhaseClock
from hotlap.trace.lines import LineSampler
from hotlap.trace.schema import Spot
from hotlap.trace.spots import Chain, SpotSampler, chain_of


class Loop:
    """A training loop whose statements take known times."""

    def __init__(self) -> None:
        self.clock = PhaseClock()
        self.stepping: set[Chain] = set()
        self.evaluating: set[Chain] = set()

    def step(self) -> None:
        self.stepping.add(chain_of(sys._getframe(1)))

    def forward(self) -> None:
        self.clock.enter(FORWARD)
        for _ in (1, 2, 3, 4):
            time.sleep(0.01)
        self.clock.enter(OTHER)

    def evaluate(self) -> None:
        self.evaluating.add(chain_of(sys._getframe(0)))
        time.sleep(0.03)

    def hold_the_lock(self) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.05:
            gc.collect()

    def run(self, steps: int) -> tuple[Spot, ...]:
        sampler = SpotSampler(self.clock)
        for _ in range(steps):
            self.forward()
            self.step()
            self.hold_the_lock()
            self.evaluate()
            copy.deepcopy([[n] for n in range(20_000)])
        sampler.stop()
        return sampler.spots(self.stepping, self.evaluating)


def test_each_statement_gets_its_time() -> None:
    spots = {spot.text: spot for spot in Loop().run(5)}
    forward = spots["time.sleep(0.01)"]
    assert (forward.phase, forward.loop) == ("forward", "for _ in (1, 2, 3, 4)")
    collecting = spots["gc.collect()"]
    assert collecting.phase == "other" and not collecting.evaluates
    assert collecting.loop.startswith("while ")
    assert not collecting.in_own_line
    (copied,) = (spot for spot in spots.values() if "deepcopy" in spot.text)
    assert copied.in_own_line and copied.where == copied.statement
    evaluation = spots["time.sleep(0.03)"]
    assert evaluation.evaluates and evaluation.statement != evaluation.where
    assert [spot.library for spot in spots.values() if "deepcopy" in spot.text] == ["copy.deepcopy"]
    assert sum(spot.share for spot in spots.values()) <= 1.001
    # 50 ms against 30 ms, on a machine that may do something else meanwhile.
    assert collecting.share > evaluation.share > 0.01


def test_a_forward_in_the_line_of_the_backward_belongs_to_that_line() -> None:
    loop = Loop()

    def backward() -> None:
        loop.stepping.add(chain_of(sys._getframe(1)))

    def penalty() -> None:
        loop.clock.enter(FORWARD)
        time.sleep(0.02)
        loop.clock.enter(OTHER)

    sampler = SpotSampler(loop.clock)
    for _ in range(5):
        _ = penalty(), backward()
    sampler.stop()
    spots = [spot for spot in sampler.spots(loop.stepping, ()) if spot.phase == "forward"]
    assert [spot.text for spot in spots] == ["time.sleep(0.02)"]


def test_what_is_no_statement_beside_the_step_is_left_out() -> None:
    loop = Loop()
    spots = loop.run(2)
    assert all("self.step()" not in spot.text for spot in spots)
    sampler = SpotSampler(loop.clock)
    time.sleep(0.05)
    sampler.stop()
    # Nothing is known of where updates are.
    assert sampler.spots((), ()) == ()


def live_tuples(until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        for each in gc.get_objects():
            if type(each) is tuple:
                count += 1
    return count


def ask_and_sleep() -> None:
    len(gc.get_objects())
    for _ in range(40):
        time.sleep(0.01)


def test_the_time_of_a_walk_over_all_objects_is_given_to_the_line_that_asks_for_them() -> None:
    loop = Loop()
    sampler = SpotSampler(loop.clock)
    for _ in range(3):
        loop.step()
        live_tuples(time.perf_counter() + 0.1)
        ask_and_sleep()
    sampler.stop()
    spots = {spot.text for spot in sampler.spots(loop.stepping, ())}
    assert spots >= {"for each in gc.get_objects():", "time.sleep(0.01)"}
    # Asking costs little there beside what the function does.
    assert "len(gc.get_objects())" not in spots


def test_a_walk_over_all_objects_does_not_end_the_sampling() -> None:
    sampler = SpotSampler(PhaseClock())
    sampler.stop()
    walked, failed = threading.Event(), []

    def sample() -> None:
        while not walked.is_set():
            try:
                sampler._look()
            except SystemError as error:
                failed.append(error)

    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        sampling = threading.Thread(target=sample)
        sampling.start()
        live_tuples(time.perf_counter() + 0.5)
    finally:
        sys.setswitchinterval(switches)
        walked.set()
    sampling.join()
    assert not failed


def test_what_a_function_held_is_freed_when_it_returns() -> None:
    class Held:
        pass

    def hold() -> "weakref.ref[Held]":
        held = Held()
        time.sleep(0.05)
        return weakref.ref(held)

    sampler = SpotSampler(PhaseClock())
    assert [hold()() for _ in range(5)] == [None] * 5
    sampler.stop()


@pytest.mark.parametrize("kind", [SpotSampler, LineSampler])
def test_what_a_function_held_is_freed_in_its_own_thread(kind: Any) -> None:
    # As torch's guards are, which undo what they did to their thread's state.
    threads: set[int] = set()

    class Guard:
        def __del__(self) -> None:
            threads.add(threading.get_ident())

    def guarded() -> int:
        guard = Guard()
        return sum(range(2000)) if guard else 0

    sampler = kind(PhaseClock())
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        guarded()
    sampler.stop()
    assert threads == {threading.get_ident()}
