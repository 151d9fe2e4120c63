"""What a trial does to autocast in a script: it looks on, or switches autocast on or off."""

from collections.abc import Callable
from typing import Any

import torch

from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.trace.facts import device_of
from hotlap.trial.autocast_gate import ON, AutocastGate, AutocastTurns, enter_autocast


class Autocast(Part):
    """Follows the script's regions of autocast, and switches them as the trial was told.

    Options: `autocast`, which is `on`, `off` or absent, and `autocast_turns`, the steps of a turn.
    Switched on, autocast lasts from a forward to the backward: the loss is computed under it.

    Args:
        session: what it is a part of, after `watch`.
        watch: counts the steps.
    """

    wants_phases = True

    def __init__(self, session: Session, watch: Watch) -> None:
        options = session.config.options
        change = options.get("autocast", "")
        self.gate = AutocastGate()
        self.gate.install()
        self._turns = AutocastTurns(self.gate, change, options.get("autocast_turns", 0))
        self._is_added = change == ON
        self._watch = watch
        self._entered: list[Callable[[], object]] = []
        """End the regions of this trial's own that have begun."""

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        device = device_of([root])
        # A region of the script's own that is off may have ended around the one before.
        if self._is_added and not torch.is_autocast_enabled(device.partition(":")[0]):
            self._entered.append(enter_autocast(device))
        return inputs

    def backward_begins(self, loss: Any) -> None:
        del loss
        self._end_regions()

    def batch_begins(self, iterator: Any) -> None:
        del iterator
        # A forward that no backward has followed.
        self._end_regions()

    def step_begins(self, optimizer: Any) -> None:
        del optimizer
        self._end_regions()

    def step_done(self, optimizer: Any) -> None:
        del optimizer
        self._turns.begin(self._watch.steps)

    def _end_regions(self) -> None:
        while self._entered:
            self._entered.pop()()
