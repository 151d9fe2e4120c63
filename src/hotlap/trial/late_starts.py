"""`LateStarts`: what models begin from that are trained only after others have been."""

from collections.abc import Sequence
from typing import Any

import torch

from hotlap.trace.identity import IdentityTable
from hotlap.trial import digest
from hotlap.trial.elements import Elements

_ELEMENTS = 256
_MOST = 64
"""Models that are noted."""


class LateStarts:
    """Notes the weights that an optimizer updates for the first time after the first update.

    They may have been made of what was trained by then, so that they are only nearly the plain
    run's.
    """

    def __init__(self) -> None:
        self._known: IdentityTable[bool] = IdentityTable()
        self.rows: list[list[Any]] = []
        """Of each model: the updates before it, how many tensors, their digest, and elements."""

    def update_begins(self, weights: Sequence[torch.Tensor], updates: int) -> None:
        """An update begins.

        Args:
            weights: what it updates, as the optimizer holds it.
            updates: how many there were before, of all optimizers.
        """
        new = [weight for weight in weights if weight not in self._known]
        for weight in new:
            self._known.put(weight, True)
        if not new or not updates or len(self.rows) == _MOST:
            return
        generator = torch.Generator().manual_seed(0)
        each = max(1, _ELEMENTS // len(new))
        drawn = [float(x) for w in new for x in Elements(w, each, generator).of(w)]
        held = digest.of_nested([weight.detach() for weight in new])
        self.rows.append([updates, len(new), held, drawn])
