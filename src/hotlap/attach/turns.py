"""Taking turns: a process trains some steps, reports their time, and waits for its next turn."""

import time
from typing import Any

import torch

from hotlap.attach.session import RunRole


class RaceRole(RunRole):
    """Stops at a gate before the first step, then trains as many steps a turn as it is told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._at_gate = True
        self._left = 0
        self._skip = 0
        self._counted = 0
        self._turn_began = 0
        self._count_began = 0

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        super().iterator_made(loader, iterator)
        if self._at_gate:
            self._gate()

    def step_ends(self, optimizer: Any) -> None:
        super().step_ends(optimizer)
        if self._at_gate:
            self._gate()
            return
        self._left -= 1
        if self._skip:
            self._skip -= 1
            if self._skip == 0:
                _synchronize()
                self._count_began = time.perf_counter_ns()
            return
        if self._left == 0:
            self._end_turn()

    def _gate(self) -> None:
        self._at_gate = False
        setup_s = time.monotonic() - self.config.options["started"]
        self.channel.send("ready", setup_s=setup_s, threads=torch.get_num_threads())
        self._wait()

    def _end_turn(self) -> None:
        _synchronize()
        now = time.perf_counter_ns()
        self.channel.send(
            "turn",
            ms=(now - self._count_began) / 1e6,
            steps=self._counted,
            whole_ms=(now - self._turn_began) / 1e6,
            techniques=self.plan.proofs(),
        )
        self._wait()

    def _wait(self) -> None:
        message = self.channel.receive()
        if message is None or message["kind"] == "stop":
            self.stop()
            return
        self._left = message["steps"]
        self._skip = message["skip"]
        self._counted = message["steps"] - message["skip"]
        self._turn_began = self._count_began = time.perf_counter_ns()


def _synchronize() -> None:
    # A turn is timed as a whole; inside it nothing waits for the device.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
