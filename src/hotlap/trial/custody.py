"""`Custody`: are weights and optimizer state untouched between two updates?"""

import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy
import torch

from hotlap.trial import digest
from hotlap.trial.elements import Elements, Vector

_ELEMENTS = 256
"""Of each weight that is followed while the script moves it itself."""


class Custody:
    """Notes the updates that find something else than the one before them has left.

    Updates are numbered from 1, over all optimizers; each optimizer has its own chain.
    """

    def __init__(self) -> None:
        self.moved: list[int] = []
        """Updates before which weights have moved."""
        self.state_moved: list[int] = []
        """Updates before which the optimizer's state has moved."""
        self.moved_in_evaluation: list[int] = []
        """Updates after which weights are evaluated or saved that these have not left."""
        self.restored_in_evaluation: list[int] = []
        """Likewise, where an earlier update has left them, as of the best ones so far."""
        self.looked_in_evaluation: list[int] = []
        """Updates after which it was looked at that."""
        self.made_anew: list[list[Any]] = []
        """Of each optimizer in the place of an earlier one: its first update, and whether it begins
        with a state."""
        self.first_state: list[str] = []
        """Of each optimizer, in the order of their first updates: its state before that."""
        self.first_weights: list[str] = []
        """Of each optimizer that there is before the first update: its weights before that."""
        self._left: dict[Hashable, tuple[str, str]] = {}
        self._begun: set[Hashable] = set()
        self._optimizers: dict[Hashable, weakref.ref[Any]] = {}
        self._held: dict[Hashable, _Held] = {}
        self._waiting: dict[int, tuple[Any, tuple[str, str]]] = {}
        """By identity, with a weak reference: what optimizers begin from that have not stepped."""
        self._movements: dict[Hashable, _Movements] = {}
        self._updates = 0

    def update_begins(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """An update begins.

        Args:
            key: which optimizer's chain it belongs to.
            optimizer: whose state is looked at.
            weights: what it updates.
        """
        self._updates += 1
        weights = list(weights)
        if key not in self._begun:
            self._begun.add(key)
            self.first_state.append(state_digest(optimizer))
            found, begins = self._waiting.pop(id(optimizer), (None, None))
            if begins is None or found is None or found() is not optimizer:
                begins = self._begin(optimizer, weights)
            self._left.setdefault(key, begins)
        elif self._optimizers[key]() is not optimizer:
            # Of its own tensors, which follow from the weights, no bit need be the plain run's.
            has_state = any(not isinstance(v, dict) or v for v in optimizer.state.values())
            self.made_anew.append([self._updates, has_state])
        self._optimizers[key] = weakref.ref(optimizer)
        self.look(key, optimizer, weights)

    def follow(self, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """Note what an optimizer begins from that has not stepped yet.

        Called at the first update of another one: what changes until its own first is seen then.

        Args:
            optimizer: whose state is looked at.
            weights: what it updates.
        """
        self._waiting[id(optimizer)] = weakref.ref(optimizer), self._begin(optimizer, list(weights))

    def _begin(self, optimizer: Any, weights: Sequence[torch.Tensor]) -> tuple[str, str]:
        begins = digest.of_nested(list(weights)), state_digest(optimizer)
        if self._updates == 1:
            self.first_weights.append(begins[0])
        return begins

    def look(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """Look again whether the update that has begun finds what was left, see `update_begins`."""
        if key not in self._left:
            return
        left, state = self._left[key]
        number, weights = self._updates, list(weights)
        has_moved = digest.of_nested(weights) != left
        if has_moved and self.moved[-1:] != [number]:
            self.moved.append(number)
        if key in self._movements and self._movements[key].fits(weights):
            self._movements[key].look(weights)
        elif has_moved:
            self._movements[key] = _Movements(weights)
        if self.state_moved[-1:] != [number] and state_digest(optimizer) != state:
            self.state_moved.append(number)

    def evaluation(self) -> None:
        """The model is evaluated or saved: with the weights that the updates have left?"""
        if self.looked_in_evaluation[-1:] != [self._updates]:
            self.looked_in_evaluation.append(self._updates)
        for key, held in self._held.items():
            weights = held.weights()
            found = self._left[key][0] if weights is None else digest.of_nested(weights)
            if found == self._left[key][0]:
                continue
            is_earlier = found in held.left
            moved = self.restored_in_evaluation if is_earlier else self.moved_in_evaluation
            if moved[-1:] != [self._updates]:
                moved.append(self._updates)

    def update_ends(
        self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor], left: str
    ) -> None:
        """The update has ended.

        Args:
            key: see above.
            optimizer: see above.
            weights: see above.
            left: their digest, as `digest.of_nested` gives it.
        """
        self._left[key] = left, state_digest(optimizer)
        known = self._held.get(key)
        if known is None or not known.is_of(optimizer):
            held = self._held[key] = _Held(optimizer)
            if known is not None and known.places == held.places:
                # A script may make its optimizer once more, and load what an earlier one has left.
                held.left = known.left
            # What another one has trained before is as this one leaves it.
            for other in [k for k, each in self._held.items() if k != key]:
                if held.places & self._held[other].places:
                    del self._held[other]
        self._held[key].left.add(left)
        weights = list(weights)
        if key in self._movements and self._movements[key].fits(weights):
            self._movements[key].leave(weights)

    def report(self) -> dict[str, Any]:
        """Return what was noted by these names, and `movements`: by optimizer that finds moved
        weights, for each weight how far it moves between two updates, and how long it is, both on
        average, and the share of the updates between which it does."""
        return {
            "first_state": self.first_state,
            "first_weights": self.first_weights,
            "moved": self.moved,
            "moved_in_evaluation": self.moved_in_evaluation,
            "restored_in_evaluation": self.restored_in_evaluation,
            "looked_in_evaluation": self.looked_in_evaluation,
            "made_anew": self.made_anew,
            "state_moved": self.state_moved,
            "movements": {str(key): each.to_json() for key, each in self._movements.items()},
        }


class _Held:
    """The parameters of an optimizer, which may be dropped by the script before the model is.

    Args:
        optimizer: that has updated them.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        held = [each for group in optimizer.param_groups for each in group["params"]]
        self._count = len(held)
        self._parameters = [weakref.ref(each) for each in held]
        self.places = frozenset(map(id, held))
        self.left: set[str] = set()
        """Digests of what updates have left in them."""

    def is_of(self, optimizer: Any) -> bool:
        """True if these are still all that it updates."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        return self._optimizer() is optimizer and count == self._count

    def weights(self) -> list[torch.Tensor] | None:
        """Return them, None if they are no more."""
        found = [parameter() for parameter in self._parameters]
        known = [parameter.detach() for parameter in found if parameter is not None]
        return known if len(known) == self._count else None


class _Movements:
    """How far weights move between updates, from the second time on that they do.

    Args:
        weights: as they are now; the same tensors are followed from here on.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._elements = [Elements(weight, _ELEMENTS, generator) for weight in weights]
        self._shapes = [weight.shape for weight in weights]
        self._left: list[Vector] = []
        self._updates = 0
        self._times = numpy.zeros(len(weights))
        self._moved = numpy.zeros(len(weights))
        self._sizes = numpy.zeros(len(weights))

    def fits(self, weights: Sequence[torch.Tensor]) -> bool:
        """False if the optimizer has got others: a group was added, or it is one of another model
        of the same script."""
        return [weight.shape for weight in weights] == self._shapes

    def _read(self, weights: Sequence[torch.Tensor]) -> list[Vector]:
        pairs = zip(self._elements, weights, strict=True)
        return [elements.of(weight) for elements, weight in pairs]

    def leave(self, weights: Sequence[torch.Tensor]) -> None:
        """An update has ended."""
        self._left = self._read(weights)
        self._updates += 1
        self._sizes += [float(each @ each) for each in self._left]

    def look(self, weights: Sequence[torch.Tensor]) -> None:
        """Note what has moved since the update, or the last look."""
        if not self._left:
            return
        now = self._read(weights)
        steps = [a - b for a, b in zip(now, self._left, strict=True)]
        moved = numpy.array([float(step @ step) for step in steps])
        self._moved += moved
        self._times += moved > 0
        self._left = now

    def to_json(self) -> list[list[float]]:
        count = max(1, self._updates)
        rows = zip(self._moved, self._sizes, self._times, strict=True)
        return [
            [(moved / count) ** 0.5, (size / count) ** 0.5, min(1.0, times / count)]
            for moved, size, times in rows
        ]


def state_digest(optimizer: Any) -> str:
    """Return the digest of every tensor that an optimizer keeps, in the order of its parameters."""
    return digest.of_nested(
        [
            dict(optimizer.state.get(parameter, {}))
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
    )
