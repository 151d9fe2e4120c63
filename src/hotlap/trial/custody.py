"""`Custody`: are weights and optimizer state untouched between two updates?"""

import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy
import torch

from hotlap.trial import digest
from hotlap.trial.elements import Elements, Vector

_Left = tuple[tuple[int, ...], str]
"""Digests of weights and of an optimizer's state, as the last update has left them."""

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
        self.restored_in_evaluation: list[list[int]] = []
        """Likewise, where an earlier update has left them, as of the best ones so far: the last
        update, and that one."""
        self.looked_in_evaluation: list[int] = []
        """Updates after which it was looked at that."""
        self.made_anew: list[list[Any]] = []
        """Of each optimizer in the place of an earlier one: its first update, and whether it begins
        with a state."""
        self.first_state: list[str] = []
        """Of each optimizer, in the order of their first updates: its state before that."""
        self.first_weights: list[str] = []
        """Of each optimizer that there is before the first update: its weights before that."""
        self._chains: list[_Chain] = []
        """Of all optimizers that are followed, those of one place in the order of their firsts."""
        self._latest: dict[Hashable, _Chain] = {}
        """Whose update was the last one in each place."""
        self._waiting: dict[int, tuple[Any, _Left]] = {}
        """By identity, with a weak reference: what optimizers begin from that have not stepped."""
        self._movements: dict[str, _Movements] = {}
        self._updates = 0

    def update_begins(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """An update begins.

        Args:
            key: which place the optimizer has in the loop, whatever object has it by then.
            optimizer: whose state is looked at.
            weights: what it updates.
        """
        self._updates += 1
        weights = list(weights)
        chain = self._find(optimizer) or self._begin_chain(key, optimizer, weights)
        # What others hold of the same tensors, or held in this place before, is in custody, too.
        for other in list(self._chains):
            if other is not chain and (other.shares(chain) or other is self._latest.get(key)):
                self._look_at_other(other, chain)
        self._latest[key] = chain
        self.look(key, optimizer, weights)

    def _find(self, optimizer: Any) -> "_Chain | None":
        return next((chain for chain in self._chains if chain.is_of(optimizer)), None)

    def _begin_chain(
        self, key: Hashable, optimizer: Any, weights: Sequence[torch.Tensor]
    ) -> "_Chain":
        latest = self._latest.get(key)
        chain = _Chain(optimizer, weights)
        if latest is None:
            self.first_state.append(state_digest(optimizer))
            found, begins = self._waiting.pop(id(optimizer), (None, None))
            if begins is None or found is None or found() is not optimizer:
                begins = self._begin(optimizer, weights)
            chain.left, chain.name = begins, str(key)
        else:
            if latest.optimizer() is not optimizer:
                # Of its own tensors, which follow from the weights, no bit need be the plain run's.
                has_state = any(not isinstance(v, dict) or v for v in optimizer.state.values())
                self.made_anew.append([self._updates, has_state])
            if chain.shapes == latest.shapes:
                chain.left, chain.name = latest.left, latest.name
            else:
                chain.left = self._begin(optimizer, weights)
                chain.name = f"{key} from update {self._updates}"
            if chain.places == latest.places:
                # A script may make its optimizer once more, and load what an earlier one has left.
                chain.earlier = latest.earlier
        self._chains.append(chain)
        return chain

    def _look_at_other(self, other: "_Chain", chain: "_Chain") -> None:
        """Look whether what another chain alone has is as it was left; end it if `chain` is in its
        place for good."""
        weights = other.weights()
        # What begins now from where the other one ended is looked at by itself.
        is_continued = other.left is chain.left
        if weights is not None and not is_continued:
            own = [n for n, place in enumerate(other.order) if place not in chain.places]
            if digest.of_tensors([weights[n] for n in own]) != [other.left[0][n] for n in own]:
                self._note_moved()
        optimizer = other.optimizer()
        # Whether a dropped one is still there depends on when Python collects cycles.
        is_replaced = optimizer is None and other.places == chain.places
        if weights is None or is_replaced or optimizer is chain.optimizer():
            self._chains.remove(other)

    def _note_moved(self) -> None:
        if self.moved[-1:] != [self._updates]:
            self.moved.append(self._updates)

    def follow(self, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """Note what an optimizer begins from that has not stepped yet.

        Called at the first update of another one: what changes until its own first is seen then.

        Args:
            optimizer: whose state is looked at.
            weights: what it updates.
        """
        self._waiting[id(optimizer)] = weakref.ref(optimizer), self._begin(optimizer, list(weights))

    def _begin(self, optimizer: Any, weights: Sequence[torch.Tensor]) -> _Left:
        begins = tuple(digest.of_tensors(weights)), state_digest(optimizer)
        if self._updates == 1:
            self.first_weights.append(digest.of_parts(begins[0]))
        return begins

    def look(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> None:
        """Look again whether the update that has begun finds what was left, see `update_begins`."""
        if key not in self._latest:
            return
        chain = self._latest[key]
        left, state = chain.left
        weights = list(weights)
        has_moved = tuple(digest.of_tensors(weights)) != left
        if has_moved:
            self._note_moved()
        movements = self._movements.get(chain.name)
        if movements is not None and movements.fits(weights):
            movements.look(weights)
        elif has_moved:
            self._movements[chain.name] = _Movements(weights)
        if self.state_moved[-1:] != [self._updates] and state_digest(optimizer) != state:
            self.state_moved.append(self._updates)

    def evaluation(self) -> None:
        """The model is evaluated or saved: with the weights that the updates have left?"""
        if self.looked_in_evaluation[-1:] != [self._updates]:
            self.looked_in_evaluation.append(self._updates)
        for chain in self._chains:
            weights = chain.weights()
            left = chain.left[0]
            found = left if weights is None else tuple(digest.of_tensors(weights))
            if found == left:
                continue
            earlier = chain.earlier.get(digest.of_parts(found))
            if earlier is not None:
                row = [self._updates, earlier]
                if row not in self.restored_in_evaluation[-len(self._chains) :]:
                    self.restored_in_evaluation.append(row)
            elif self.moved_in_evaluation[-1:] != [self._updates]:
                self.moved_in_evaluation.append(self._updates)

    def update_ends(self, key: Hashable, optimizer: Any, weights: Iterable[torch.Tensor]) -> str:
        """The update has ended; return a digest of the weights.

        Args:
            key: see above.
            optimizer: see above.
            weights: see above.
        """
        weights = list(weights)
        chain = self._latest[key]
        left = tuple(digest.of_tensors(weights))
        chain.leave(left, state_digest(optimizer), self._updates)
        known = dict(zip(chain.order, left, strict=False))
        for other in self._chains:
            if other is not chain and other.shares(chain):
                shared = zip(other.order, other.left[0], strict=False)
                parts = tuple(known.get(place, part) for place, part in shared)
                other.leave(parts, other.left[1], self._updates)
        movements = self._movements.get(chain.name)
        if movements is not None and movements.fits(weights):
            movements.leave(weights)
        return digest.of_parts(left)

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


class _Chain:
    """What the updates of one optimizer leave, and where: it may be dropped before its model is.

    Args:
        optimizer: whose updates these are.
        weights: what it updates.
    """

    def __init__(self, optimizer: Any, weights: Sequence[torch.Tensor]) -> None:
        self.optimizer = weakref.ref(optimizer)
        held = _held_by(optimizer)
        self._parameters = [weakref.ref(each) for each in held]
        self.order = [id(each) for each in held]
        self.places = frozenset(self.order)
        self.shapes = [weight.shape for weight in weights]
        self.left: _Left = (), ""
        self.earlier: dict[str, int] = {}
        """Digest of weights -> the update that has left them."""
        self.name = ""
        """Of its movements."""

    def is_of(self, optimizer: Any) -> bool:
        """True if it follows this optimizer, and these are still all that it updates."""
        if self.optimizer() is not optimizer:
            return False
        held = _held_by(optimizer)
        known = self._parameters
        return len(held) == len(known) and all(
            ref() is each for ref, each in zip(known, held, strict=True)
        )

    def shares(self, other: "_Chain") -> bool:
        """True if some tensors are in both."""
        return not self.places.isdisjoint(other.places)

    def leave(self, weights: tuple[int, ...], state: str, update: int) -> None:
        """An update has ended, by this optimizer or by one that shares its tensors."""
        self.left = weights, state
        self.earlier[digest.of_parts(weights)] = update

    def weights(self) -> list[torch.Tensor] | None:
        """Return what it updates, None if that is no more."""
        found = [parameter() for parameter in self._parameters]
        known = [parameter.detach() for parameter in found if parameter is not None]
        return known if len(known) == len(found) else None


def _held_by(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


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
