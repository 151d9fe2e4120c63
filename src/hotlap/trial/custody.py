"""`Custody`: are weights and optimizer state untouched between two updates?"""

from collections.abc import Hashable, Iterable
from typing import Any

import torch

from hotlap.trial import digest


class Custody:
    """Notes the updates that find something else than the one before them has left.

    Updates are numbered from 1, over all optimizers; each optimizer has its own chain.
    """

    def __init__(self) -> None:
        self.moved: list[int] = []
        """Updates before which weights have moved."""
        self.state_moved: list[int] = []
        """Updates before which the optimizer's state has moved."""
        self.first_state: list[str] = []
        """Of each optimizer, in the order of their first updates: its state before that."""
        self._left: dict[Hashable, tuple[str, str]] = {}
        self._begun: set[Hashable] = set()
        self._updates = 0

    def update_begins(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """An update begins.

        Args:
            key: which optimizer's chain it belongs to.
            optimizer: whose state is looked at.
            weights: what it updates.
        """
        self._updates += 1
        if key not in self._begun:
            self._begun.add(key)
            self.first_state.append(state_digest(optimizer))
        self.look(key, optimizer, weights)

    def look(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """Look again whether the update that has begun finds what was left, see `update_begins`."""
        if key not in self._left:
            return
        left, state = self._left[key]
        number = self._updates
        if self.moved[-1:] != [number] and digest.of_nested(list(weights)) != left:
            self.moved.append(number)
        if self.state_moved[-1:] != [number] and state_digest(optimizer) != state:
            self.state_moved.append(number)

    def update_ends(self, key: Hashable, optimizer: Any, left: str) -> None:
        """The update has ended.

        Args:
            key: see above.
            optimizer: see above.
            left: digest of its weights now, as `digest.of_nested` gives it.
        """
        self._left[key] = left, state_digest(optimizer)

    def report(self) -> dict[str, Any]:
        """Return `first_state`, `moved` and `state_moved` by these names."""
        return {
            "first_state": self.first_state,
            "moved": self.moved,
            "state_moved": self.state_moved,
        }


def state_digest(optimizer: Any) -> str:
    """Return the digest of every tensor that an optimizer keeps, in the order of its parameters."""
    return digest.of_nested(
        [
            dict(optimizer.state.get(parameter, {}))
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
    )
