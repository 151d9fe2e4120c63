"""Role `memory`: observes what a script's first steps allocate, and what holds it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.attach.roles.autocast import Autocast
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.attach.seams import known_optimizers
from hotlap.trace import event_kinds, frames
from hotlap.trace.facts import device_of
from hotlap.trace.memory_recorder import LEAST_STEPS, STEPS, MemoryRecorder
from hotlap.trace.memory_schema import SNAPSHOT


class WatchMemory(Part):
    """Feeds a `MemoryRecorder` with what the seams hear, and ends the trial after some steps.

    Options: `folder`, where the trace is written; `seconds`, after which fewer steps do; `snapshot`
    is True if the allocator's history is to be written there, too.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows models and loaders.
        autocast: knows in which format autocast computes.
    """

    wants_phases = True
    wants_events = True

    def __init__(self, session: Session, watch: Watch, autocast: Autocast) -> None:
        self._session, self._watch, self._autocast = session, watch, autocast
        watch.recorder.keeps_losses = False
        self._snapshot = session.config.options.get("snapshot", False)
        self._recorder = MemoryRecorder(
            known_optimizers, lambda: watch.roots, keeps_history=self._snapshot
        )
        self._folder = Path(session.config.options["folder"])
        self._seconds = session.config.options["seconds"]
        self._began = 0.0

    def _begin(self) -> None:
        if known_optimizers() and not self._began:
            self._began = time.monotonic()
            self._recorder.begin()

    def batch_begins(self, iterator: Any) -> None:
        del iterator
        self._begin()
        self._recorder.enter_phase("data")

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        del iterator
        if self._began:
            self._recorder.batch_ends(batch, frames.caller())
        self._recorder.enter_phase("other")
        return batch

    def event_happens(self, kind: str) -> None:
        if kind == event_kinds.EMPTY_CACHE:
            self._recorder.cache_emptied(frames.caller())

    def root_found(self, module: Any) -> None:
        del module
        self._begin()

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._recorder.forward_begins(frames.caller(), inputs)
        return inputs

    def backward_begins(self, loss: Any) -> None:
        del loss
        self._recorder.backward_begins()

    def backward_ends(self) -> None:
        self._recorder.backward_ends()

    def zeroing_begins(self) -> None:
        self._begin()
        self._recorder.zeroing_begins(frames.caller())

    def step_begins(self, optimizer: Any) -> None:
        del optimizer
        self._recorder.enter_phase("optimizer")

    def step_done(self, optimizer: Any) -> None:
        if not self._watch.is_first(optimizer):
            return
        self._recorder.step_ends(frames.caller())
        is_late = time.monotonic() - self._began > self._seconds
        if self._recorder.steps >= STEPS or (is_late and self._recorder.steps >= LEAST_STEPS):
            self._session.stop()

    def report(self) -> dict[str, Any]:
        # What hotlap itself computes now is none of the script's.
        self._recorder.ledger.end()
        if self._snapshot:
            self._recorder.write_snapshot(self._folder / SNAPSHOT)
        facts = self._watch.facts()
        trace = self._recorder.trace(device_of(self._watch.roots), facts.planned_steps)
        seen = replace(
            trace,
            autocast=self._autocast.gate.format,
            setup_s=self._watch.recorder.setup_s,
        )
        seen.write(self._folder)
        return {}
