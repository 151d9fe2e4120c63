"""Taking turns: trains some steps, reports their time, and waits for the next turn."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from hotlap.device import process_settings
from hotlap.host.memory import resident_bytes
from hotlap.host.run_queue import seconds_waited, waits
from hotlap.trial.channel import Channel

_TURN_MS = 60.0
_STEPS = (3, 40)
_SLOW_MS = 20.0
"""A step so long hides what the step after a switch takes on top: caches are cold by then."""


def steps_of_turn(step_ms: float) -> int:
    """Return the steps of a turn in which plans are switched: short turns differ least."""
    least, most = _STEPS
    return min(most, max(least, round(_TURN_MS / step_ms)))


def settling_steps(step_ms: float, settle: int) -> int:
    """Return the steps after a switch that do not count, where a technique asks for `settle`."""
    return min(1, settle) if step_ms >= _SLOW_MS else settle


class Turns:
    """Waits at a gate, then lets as many steps through as each turn is told to take.

    A turn reports the time of all its steps together, and the median of their times: what else
    runs on the machine lengthens a few steps by far, and the median is not moved by them.

    Args:
        channel: to whoever holds the race.
        started: when the process was started, as `time.monotonic()` counts.
        proofs: what took effect so far.
        failures: number of each technique that could not be switched so far -> why.
        stop: ends this process.
        begin: called with the message that a turn begins with, outside all timing.
        keep: called with a message that asks for whole steps; it is followed by `wait`.
    """

    def __init__(
        self,
        channel: Channel,
        started: float,
        proofs: Callable[[], list[dict[str, str]]],
        stop: Callable[[], None],
        begin: Callable[[dict[str, Any]], None] = lambda _: None,
        keep: Callable[[dict[str, Any]], None] | None = None,
        failures: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        self._channel, self._started = channel, started
        self._proofs, self._stop, self._begin, self._keep = proofs, stop, begin, keep
        self._failures = failures
        self.is_open = False
        """True once the gate has been passed."""
        self._clock = TurnClock()

    def gate(self, **more: Any) -> None:
        """Say that everything is ready, and `more`, and wait for the first turn."""
        self.is_open = True
        setup_s = time.monotonic() - self._started
        self._channel.send("ready", setup_s=setup_s, threads=torch.get_num_threads(), **more)
        self.wait()

    def step_done(self) -> None:
        """Count a step; at the end of a turn, report it and wait for the next."""
        if not self._clock.step_done():
            return
        clock = self._clock
        self._channel.send(
            "turn",
            ms=clock.ms,
            median_ms=clock.median_ms,
            steps=clock.counted,
            whole_ms=clock.whole_ms,
            waited_ms=clock.waited_ms,
            techniques=self._proofs(),
            failed={str(number): why for number, why in self._failures().items()},
            peak_bytes=_peak_bytes(),
        )
        self.wait()

    def wait(self) -> None:
        """Wait for the next turn, or for what else is asked for."""
        message = self._channel.receive()
        if message is None or message["kind"] == "stop":
            self._stop()
            return
        if message["kind"] == "keep" and self._keep is not None:
            self._keep(message)
            return
        self._begin(message)
        self._clock.begin(message["steps"], message["skip"])


class TurnClock:
    """Times the steps of one turn after another."""

    def __init__(self) -> None:
        self.counted = 0
        """Steps of the turn that count."""
        self.ms = 0.0
        """Of these steps together."""
        self.median_ms = 0.0
        """Of one of them; the mean where steps are queued on a device."""
        self.whole_ms = 0.0
        """Of all steps of the turn."""
        self.waited_ms = 0.0
        """That threads of this process were ready to run in the turn and had no core, together; 0
        where that is not known."""
        self._waits: Mapping[str, int] | None = None
        """What `waits` returned when the turn began."""
        self._left = 0
        self._skip = 0
        self._turn_began = 0
        self._count_began = 0
        self._ends: list[int] = []
        """When each counted step ended; empty where steps are queued on a device."""
        self._is_queued = False

    def begin(self, steps: int, skip: int) -> None:
        """Begin a turn of so many steps, the first `skip` of which do not count."""
        self._left, self._skip, self.counted = steps, skip, steps - skip
        self._ends.clear()
        self._is_queued = _is_queued()
        self._waits = waits()
        self._turn_began = self._count_began = time.perf_counter_ns()

    def step_done(self) -> bool:
        """Count a step; True if it was the turn's last one, whose times are then known."""
        self._left -= 1
        if self._skip:
            self._skip -= 1
            if self._skip == 0:
                _synchronize()
                self._count_began = time.perf_counter_ns()
            return False
        if not self._is_queued:
            self._ends.append(time.perf_counter_ns())
        if self._left:
            return False
        _synchronize()
        now = time.perf_counter_ns()
        self.ms, self.whole_ms = (now - self._count_began) / 1e6, (now - self._turn_began) / 1e6
        self.waited_ms = seconds_waited(self._waits, waits()) * 1e3
        each = [(b - a) / 1e6 for a, b in pairwise([self._count_began, *self._ends])]
        # The host runs ahead of a device, and waiting in every step would slow it down.
        self.median_ms = self.ms / self.counted if self._is_queued else median(each)
        return True


def _is_queued() -> bool:
    """True if steps are queued on a device: when one ends on the host says nothing then."""
    return bool(process_settings.devices_in_use())


def _peak_bytes() -> int:
    """Return the most bytes held at once: on the devices, where steps are queued there."""
    used = process_settings.devices_in_use()
    if used:
        return sum(int(torch.cuda.max_memory_reserved(number)) for number in used)
    return resident_bytes()[1]


def _synchronize() -> None:
    # A turn is timed as a whole; inside it nothing waits for a device.
    for number in process_settings.devices_in_use():
        torch.cuda.synchronize(number)
