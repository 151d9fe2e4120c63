"""`LateStarts`: what models begin from that are trained only after others have been."""

from collections.abc import Sequence
from typing import Any

import torch

from hotlap.trace.identity import IdentityTable
from hotlap.trial import digest
from hotlap.trial.elements import Elements

_ELEMENTS, _LEAST = 256, 4
"""Of all weights together, and of each."""
_MOST = 64
"""Rows that are noted."""


class LateStarts:
    """Notes the weights that an optimizer updates for the first time after the first update.

    They may have been made of what was trained by then, so that they are only nearly the plain
    run's.

    Args:
        seed: which of their elements are drawn.
    """

    def __init__(self, seed: int) -> None:
        self._known: IdentityTable[bool] = IdentityTable()
        self._seed = seed
        self.rows: list[list[Any]] = []
        """Of each optimizer that brings such weights: the updates before it, how many tensors,
        their digest, and elements of each."""

    def know(self, weights: Sequence[torch.Tensor]) -> None:
        """These are there before the first update, and are compared by other means."""
        for weight in weights:
            self._known.put(weight, True)

    def update_begins(self, weights: Sequence[torch.Tensor], updates: int) -> None:
        """An update begins.

        Args:
            weights: what it updates, as the optimizer holds it.
            updates: how many there were before, of all optimizers.
        """
        new = [weight for weight in weights if weight not in self._known]
        self.know(new)
        if not new or not updates or len(self.rows) == _MOST:
            return
        generator = torch.Generator().manual_seed(self._seed)
        each = max(_LEAST, _ELEMENTS // len(new))
        drawn = [Elements(weight, each, generator).of(weight).tolist() for weight in new]
        held = digest.of_nested([weight.detach() for weight in new])
        self.rows.append([updates, len(new), held, drawn])
