"""Role `duel`: an attached script trains in turns, under one live plan after another."""

from typing import Any

from hotlap.attach.live import LiveTechniques
from hotlap.attach.roles.race import LoopEnds
from hotlap.attach.roles.session import Part, Session
from hotlap.trial.turns import Turns


class Duel(Part):
    """Stops at a gate after some steps, then takes turns, each under the plan that it is told.

    Args:
        session: what it is a part of. Its options: `started`, when the process was started;
            `age`, steps before the gate.
        live: the techniques; a turn names those that are on by their numbers.
    """

    def __init__(self, session: Session, live: LiveTechniques) -> None:
        options = session.config.options
        self._live = live
        self._turns = Turns(
            session.channel, options["started"], live.proofs, session.stop, begin=self._begin
        )
        self._ends = LoopEnds()
        self._left = options["age"]

    def step_done(self, optimizer: Any) -> None:
        if not self._ends.ends(optimizer):
            return
        if self._turns.is_open:
            self._turns.step_done()
            return
        self._left -= 1
        if self._left <= 0:
            self._live.prepare()
            failed = {str(number): why for number, why in self._live.failed().items()}
            self._turns.gate(failed=failed)

    def _begin(self, message: dict[str, Any]) -> None:
        self._live.use(message["on"])
