"""Role `count`: what a step of the script computes, in a process whose results nobody keeps."""

from typing import Any

from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.trace.arithmetic import StepCounter
from hotlap.trace.facts import device_of


class CountStep(Part):
    """Counts some steps, and ends the trial.

    Options: `seconds`, after which one step is enough.

    Args:
        session: what it is a part of, after `watch`.
        watch: knows the models, and when a step has ended.
    """

    wants_phases = True

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session, self._watch = session, watch
        watch.recorder.keeps_losses = False
        self._counter = StepCounter(session.config.options["seconds"])

    def step_begins(self, optimizer: Any) -> None:
        self._counter.note_gradients(optimizer, is_first=self._watch.is_first(optimizer))

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        if self._watch.is_between_steps() and self._counter.step_ends():
            self._session.stop()

    def report(self) -> dict[str, Any]:
        """Return what was counted."""
        costs = self._counter.costs(device_of(self._watch.roots))
        return {"costs": None if costs is None else costs.to_json()}
