"""Role `race`: an attached script trains in turns of as many steps as it is told."""

from typing import Any

from hotlap.attach.roles.loop_ends import LoopEnds
from hotlap.attach.roles.session import Part, Session
from hotlap.trial.turns import Turns


class TakeTurns(Part):
    """Stops at a gate before the first step, then trains as many steps a turn as it is told.

    Args:
        session: what it is a part of. Its option `started` is when the process was started.
    """

    def __init__(self, session: Session) -> None:
        started = session.config.options["started"]
        self._turns = Turns(session.channel, started, session.plan.proofs, session.stop)
        self._ends = LoopEnds()
        self._steps = 0

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        del loader, iterator
        if not self._turns.is_open:
            self._turns.gate()

    def step_done(self, optimizer: Any) -> None:
        ends_iteration = self._ends.ends(optimizer)
        self._steps += ends_iteration
        if not self._turns.is_open:
            self._turns.gate()
        elif ends_iteration:
            self._turns.step_done()

    def report(self) -> dict[str, Any]:
        # Those that turns are counted in, not the updates of several optimizers.
        return {"steps": self._steps}
