"""Every instant of a run belongs to one phase, on the host's clock and on a device's."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.trace.clock import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    DevicePhaseClock,
    PhaseClock,
    phase_clock,
)
from hotlap.trace.facts import device_of, place_of


class Ticks:
    """A time that goes on by as much as it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Event:
    """An event of a device whose time is that of `ticks`."""

    def __init__(self, ticks: Ticks) -> None:
        self.at = ticks.now
        self.was_waited_for = False

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) / 1e6

    def synchronize(self) -> None:
        self.was_waited_for = True


def step(clock: PhaseClock, ticks: Ticks) -> Any:
    """Let a step go by, whose phases take 1 to 4 in their order, and what is between them 5."""
    for ns, phase in enumerate((DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER), 1):
        clock.enter(phase)
        ticks.now += ns
    clock.mark_boundary()
    return clock.take()


def test_every_instant_belongs_to_one_phase() -> None:
    ticks = Ticks()
    clock = PhaseClock(ticks)
    assert step(clock, ticks) == [1, 2, 3, 4, 5]
    assert step(clock, ticks) == [1, 2, 3, 4, 5]


def test_what_follows_a_boundary_belongs_to_the_next_step_unless_another_comes() -> None:
    ticks = Ticks()
    clock = PhaseClock(ticks)
    clock.enter(OPTIMIZER)
    ticks.now += 3
    clock.mark_boundary()
    clock.enter(OTHER)
    ticks.now += 2
    # A second optimizer ends the same step.
    clock.mark_boundary()
    clock.enter(DATA)
    ticks.now += 7
    assert clock.take() == [0, 0, 0, 3, 2]
    clock.mark_boundary()
    assert clock.take() == [7, 0, 0, 0, 0]


def end_step(clock: PhaseClock) -> None:
    clock.note_end(len(clock.marks))
    clock.note((clock.current, clock.now()))


def steps_at_once(clock: PhaseClock, ticks: Ticks, capturing: list[bool]) -> list[Any]:
    """Let three steps go by, the end of the second one and a phase of the third one captured."""
    for number in range(3):
        for ns, phase in enumerate((DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER), 1):
            capturing[0] = (number, phase) in {(1, OTHER), (2, DATA), (2, BACKWARD)}
            clock.note((phase, clock.now()))
            ticks.now += ns
        end_step(clock)
    capturing[0] = False
    ticks.now += 3
    rows = clock.take_ended()
    clock.enter(DATA)
    ticks.now += 7
    end_step(clock)
    rows += clock.take_ended()
    clock.flush(rows)
    return rows


def test_steps_that_have_ended_are_taken_at_once() -> None:
    ticks = Ticks()
    rows = steps_at_once(PhaseClock(ticks), ticks, [False])
    assert rows == [*([[1, 2, 3, 4, 5]] * 3), [7, 0, 0, 0, 3]]


def test_a_step_whose_end_was_captured_is_timed_up_to_the_event_before() -> None:
    ticks, capturing = Ticks(), [False]
    clock = DevicePhaseClock(lambda: Event(ticks), lambda: capturing[0])
    rows = steps_at_once(clock, ticks, capturing)
    # What was captured belongs to the phase before: the second step ends as its update begins.
    assert rows == [[1, 2, 3, 4, 5], [1, 2, 3, 0, 0], [0, 5, 0, 14, 5], [7, 0, 0, 0, 3]]
    assert clock.current == DATA


def test_a_step_of_which_everything_was_captured_took_no_time() -> None:
    ticks, capturing = Ticks(), [True]
    clock = DevicePhaseClock(lambda: Event(ticks), lambda: capturing[0])
    clock.enter(FORWARD)
    end_step(clock)
    capturing[0] = False
    clock.enter(BACKWARD)
    ticks.now += 4
    end_step(clock)
    rows = clock.take_ended()
    clock.flush(rows)
    assert rows == [[0] * 5, [0, 0, 4, 0, 0]]


def test_set_up_is_forgotten() -> None:
    ticks = Ticks()
    clock = PhaseClock(ticks)
    ticks.now += 100
    clock.reset()
    assert step(clock, ticks) == [1, 2, 3, 4, 5]


def test_a_device_tells_its_own_time_once_it_is_asked_for() -> None:
    ticks, made = Ticks(), list[Event]()

    def mark() -> Event:
        made.append(Event(ticks))
        return made[-1]

    clock = DevicePhaseClock(mark, lambda: False)
    rows = [step(clock, ticks), step(clock, ticks)]
    assert not any(each.was_waited_for for each in made)
    clock.flush(rows)
    assert rows == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert any(each.was_waited_for for each in made)


def test_nothing_is_recorded_while_a_graph_is_captured() -> None:
    ticks, made, capturing = Ticks(), list[Event](), [False]

    def mark() -> Event:
        assert not capturing[0]
        made.append(Event(ticks))
        return made[-1]

    clock = DevicePhaseClock(mark, lambda: capturing[0])
    clock.enter(FORWARD)
    ticks.now += 2
    capturing[0] = True
    clock.enter(BACKWARD)
    ticks.now += 3
    capturing[0] = False
    clock.enter(OTHER)
    clock.mark_boundary()
    rows = [clock.take()]
    clock.flush(rows)
    assert rows == [[0, 5, 0, 0, 0]]


def test_the_clock_of_a_run_on_the_cpu_asks_no_device() -> None:
    assert phase_clock("cpu").name == "host"


def test_the_clock_of_a_device_is_that_device_whatever_the_current_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    class Made:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            asked.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    clock = phase_clock("cuda:1")
    clock.enter(FORWARD)
    assert asked == ["stream of cuda:1"] * 2


def test_a_model_is_where_its_parameters_are() -> None:
    assert place_of([torch.nn.ReLU(), torch.nn.Linear(1, 1)]) == "cpu"
    parameter = SimpleNamespace(device=torch.device("cuda", 1))
    model = SimpleNamespace(parameters=lambda: iter([parameter]))
    assert (place_of([model]), device_of([model])) == ("cuda:1", "cuda")
