"""Role `profile`: records some of a script's steps with torch.profiler, and names what is in it."""

from pathlib import Path
from typing import Any

from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER
from hotlap.trace.profiler_window import ProfilerWindow


class ProfileSteps(Part):
    """Marks phases and steps for a `ProfilerWindow`, and ends the trial once that is over.

    Options: `folder`, where the trace is written; `kinds`, what is recorded; `seconds`, for which
    there is time.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows the models and optimizers.
    """

    wants_phases = True

    def __init__(self, session: Session, watch: Watch) -> None:
        options = session.config.options
        watch.recorder.keeps_losses = False
        self._session, self._watch = session, watch
        self._window = ProfilerWindow(
            options["kinds"], Path(options["folder"]), options["seconds"], lambda: watch.roots
        )
        self._phases = self._window.phases
        self._is_stepping = False

    def batch_begins(self, iterator: Any) -> None:
        del iterator
        self._phases.enter(DATA)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        del iterator
        self._phases.enter(OTHER)
        return batch

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._phases.enter(FORWARD)
        return inputs

    def backward_begins(self, loss: Any) -> None:
        del loss
        self._phases.enter(BACKWARD)

    def backward_ends(self) -> None:
        # In a closure that the step has called, the update follows.
        self._phases.enter(OPTIMIZER if self._is_stepping else OTHER)

    def zeroing_begins(self) -> None:
        self._phases.enter_nested(OPTIMIZER)

    def zeroing_ends(self) -> None:
        self._phases.leave_nested()

    def step_begins(self, optimizer: Any) -> None:
        del optimizer
        self._is_stepping = True
        self._phases.enter(OPTIMIZER)

    def step_failed(self, optimizer: Any) -> None:
        del optimizer
        self._is_stepping = False

    def step_ends(self, optimizer: Any) -> None:
        del optimizer
        self._is_stepping = False
        self._phases.enter(OTHER)

    def step_done(self, optimizer: Any) -> None:
        if self._watch.is_first(optimizer) and self._window.step_done():
            self._session.stop()

    def report(self) -> dict[str, Any]:
        self._window.close()
        return {}
