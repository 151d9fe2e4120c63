"""`QuietSteps`: notes the ends of steps of which nothing else is heard."""

import time
from collections.abc import Callable
from typing import Any

from hotlap.trace.clock import OTHER
from hotlap.trace.recorder import Recorder

_monotonic = time.monotonic


class QuietSteps:
    """All that the end of such a step needs, in one small object.

    Next to a model's kernels nothing of it is in a cache: what is spread over the parts of a role
    takes some 20 us more.

    Args:
        recorder: whose clock notes it.
        optimizer: returns the optimizer that steps.
        step_done: called instead where another one steps, and when it is time to look.
    """

    __slots__ = ("_marks", "_note", "_note_end", "_now", "_step_done", "optimizer", "until")

    def __init__(
        self, recorder: Recorder, optimizer: Callable[[], Any], step_done: Callable[[Any], None]
    ) -> None:
        clock = recorder.clock
        self._marks, self._note, self._note_end = clock.marks, clock.note, clock.note_end
        self._now, self._step_done = clock.now, step_done
        self.optimizer = optimizer
        """Returns the optimizer that steps."""
        self.until = recorder.looks_at
        """When it is time to look, as `time.monotonic()` counts."""

    def step_done(self, optimizer: Any) -> None:
        """A step of the optimizer has ended."""
        if self.optimizer() is optimizer and _monotonic() < self.until:
            self._note_end(len(self._marks))
            self._note((OTHER, self._now()))
        else:
            self._step_done(optimizer)
