"""Role `race`: a script trains in turns; `LoopEnds`: which optimizer step ends an iteration."""

import weakref
from typing import Any

from hotlap.attach.roles.session import Part, Session
from hotlap.trial.turns import Turns

_REPLACED_AFTER = 20
"""Steps of other optimizers without one of the first: the script trains with another one now."""


class TakeTurns(Part):
    """Stops at a gate before the first step, then trains as many steps a turn as it is told.

    Args:
        session: what it is a part of. Its option `started` is when the process was started.
    """

    def __init__(self, session: Session) -> None:
        started = session.config.options["started"]
        self._turns = Turns(session.channel, started, session.plan.proofs, session.stop)
        self._ends = LoopEnds()

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        del loader, iterator
        if not self._turns.is_open:
            self._turns.gate()

    def step_done(self, optimizer: Any) -> None:
        ends_iteration = self._ends.ends(optimizer)
        if not self._turns.is_open:
            self._turns.gate()
        elif ends_iteration:
            self._turns.step_done()


class LoopEnds:
    """Tells which of a script's optimizer steps ends an iteration of its loop."""

    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None
        self._others = 0

    def ends(self, optimizer: Any) -> bool:
        """True at a step of the first optimizer: with several, a step is one of each of them.

        A script that makes a new optimizer now and then goes on with the new one.
        """
        first = None if self._first is None else self._first()
        if optimizer is not first:
            self._others += 1
            if first is not None and self._others <= _REPLACED_AFTER:
                return False
            self._first = weakref.ref(optimizer)
        self._others = 0
        return True
