"""Taking turns: a process trains some steps, reports their time, and waits for its next turn."""

import time
from collections.abc import Callable
from typing import Any

import torch

from hotlap.attach.channel import Channel
from hotlap.attach.session import RunRole


class Turns:
    """Waits at a gate, then lets as many steps through as each turn is told to take.

    Args:
        channel: to whoever holds the race.
        started: when the process was started, as `time.monotonic()` counts.
        proofs: what took effect so far.
        stop: ends this process.
    """

    def __init__(
        self,
        channel: Channel,
        started: float,
        proofs: Callable[[], list[dict[str, str]]],
        stop: Callable[[], None],
    ) -> None:
        self._channel, self._started = channel, started
        self._proofs, self._stop = proofs, stop
        self.is_open = False
        """True once the gate has been passed."""
        self._left = 0
        self._skip = 0
        self._counted = 0
        self._turn_began = 0
        self._count_began = 0

    def gate(self) -> None:
        """Say that everything is ready, and wait for the first turn."""
        self.is_open = True
        setup_s = time.monotonic() - self._started
        self._channel.send("ready", setup_s=setup_s, threads=torch.get_num_threads())
        self._wait()

    def step_done(self) -> None:
        """Count a step; at the end of a turn, report it and wait for the next."""
        self._left -= 1
        if self._skip:
            self._skip -= 1
            if self._skip == 0:
                _synchronize()
                self._count_began = time.perf_counter_ns()
            return
        if self._left == 0:
            self._end_turn()

    def _end_turn(self) -> None:
        _synchronize()
        now = time.perf_counter_ns()
        self._channel.send(
            "turn",
            ms=(now - self._count_began) / 1e6,
            steps=self._counted,
            whole_ms=(now - self._turn_began) / 1e6,
            techniques=self._proofs(),
        )
        self._wait()

    def _wait(self) -> None:
        message = self._channel.receive()
        if message is None or message["kind"] == "stop":
            self._stop()
            return
        self._left = message["steps"]
        self._skip = message["skip"]
        self._counted = message["steps"] - message["skip"]
        self._turn_began = self._count_began = time.perf_counter_ns()


class RaceRole(RunRole):
    """Stops at a gate before the first step, then trains as many steps a turn as it is told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        started = self.config.options["started"]
        self._turns = Turns(self.channel, started, self.plan.proofs, self.stop)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        super().iterator_made(loader, iterator)
        if not self._turns.is_open:
            self._turns.gate()

    def step_ends(self, optimizer: Any) -> None:
        super().step_ends(optimizer)
        if self._turns.is_open:
            self._turns.step_done()
        else:
            self._turns.gate()


def _synchronize() -> None:
    # A turn is timed as a whole; inside it nothing waits for the device.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
