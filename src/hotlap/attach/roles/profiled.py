"""Role `profile`: torch's profiler over some steps of the script, in a process of its own."""

from pathlib import Path
from typing import Any

from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.trace.profiler import StepProfiler


class ProfileSteps(Part):
    """Feeds a `StepProfiler` with what the seams hear, and ends the trial.

    Options: `kinds`, what is recorded; `file`, where the trace is written.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows when a step has ended.
    """

    wants_phases = True

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session, self._watch = session, watch
        watch.recorder.keeps_losses = False
        self._file = Path(session.config.options["file"])
        self._profiler = StepProfiler(session.config.options["kinds"])

    def root_found(self, module: Any) -> None:
        self._profiler.watch(module)

    def batch_begins(self, iterator: Any) -> None:
        del iterator
        self._profiler.enter_phase("data")

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        del iterator
        self._profiler.enter_phase("other")
        return batch

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._profiler.enter_phase("forward")
        return inputs

    def backward_begins(self, loss: Any) -> None:
        del loss
        self._profiler.enter_phase("backward")

    def backward_ends(self) -> None:
        self._profiler.enter_phase("other")

    def zeroing_begins(self) -> None:
        self._profiler.enter_phase("optimizer")

    def zeroing_ends(self) -> None:
        self._profiler.enter_phase("other")

    def step_begins(self, optimizer: Any) -> None:
        del optimizer
        self._profiler.enter_phase("optimizer")

    def step_ends(self, optimizer: Any) -> None:
        del optimizer
        self._profiler.enter_phase("other")

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        if self._watch.is_between_steps() and self._profiler.step_ends():
            self._session.stop()

    def report(self) -> dict[str, Any]:
        """Write the trace and say what it cost."""
        return self._profiler.report(self._file)
