"""Follows averaged copies of a model (EMA, SWA): how far each update moves them to the weights."""

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from hotlap.trace.identity import IdentityTable
from hotlap.trial import digest
from hotlap.trial.copies import containers_of, modules_like, parts_like, place_of
from hotlap.trial.elements import Elements, Vector

_ELEMENTS = 1024
_MOVES, _SHARE = 5, 0.05
"""A container is an average if it moves so often, in such a share of the updates. A snapshot of the
best weights moves seldom, and rounding decides when."""

_ALONE = 2
"""References to what only one list and the call of `sys.getrefcount` refer to."""

Tensors = Sequence[torch.Tensor]
Read = Callable[[], Tensors | None]


class Averages:
    """Notes at each update how far copies have moved towards the weights since the one before.

    A copy is a module of the same class and the same shapes as one that is trained, whose
    parameters are its own, and no optimizer's; a module that is like a part of one; or a list or
    dict of tensors that have the shapes of its parameters, and are near them. Copies are looked for
    at the updates 1, 2, 4, 8 and so on; one that the script drops, or changes into something else,
    is forgotten. Of modules the buffers are followed as well.
    """

    def __init__(self) -> None:
        self._copies: list[_Copy] = []
        self._looked: IdentityTable[frozenset[int]] = IdentityTable()
        """Modules that no optimizer trains, with the numbers of the roots whose parts were seen."""
        self._updates = 0

    def update_begins(
        self, roots: Sequence[Any], trained: Tensors, others: Sequence[Any] = ()
    ) -> list[Any]:
        """An update begins: the copies are what the step before has made of them.

        Args:
            roots: the modules that are trained.
            trained: what optimizers update, which is no copy.
            others: modules that the script calls and no optimizer trains; one may be a copy of a
                part of those that are trained.

        Returns:
            Copies of whole modules that were not known before.
        """
        self._look({id(tensor) for tensor in trained})
        self._updates += 1
        # A power of two: what a long run has made by then is found, at a price that ends.
        if self._updates & (self._updates - 1):
            return []
        known = {copy.key for copy in self._copies}
        found, places = [], {place_of(tensor) for tensor in trained}
        objects = gc.get_objects()
        for number, root in enumerate(roots):
            for module in modules_like(root, {id(tensor) for tensor in trained}, objects):
                is_new = id(module) not in known
                read, weights = _of_module(module), _of_module(root)
                if is_new and self._add(number, module, read, weights, model=root):
                    found.append(module)
            for other in others:
                self._find_parts(number, root, other, {id(tensor) for tensor in trained} | known)
            for holder, keys, names in containers_of(root, places, objects):
                if id(holder) not in known:
                    read = _of_container(holder, keys)
                    self._add(number, holder, read, _of_names(root, names), is_sure=False)
        return found

    def _find_parts(self, number: int, root: Any, other: Any, not_followed: set[int]) -> None:
        """Follow what a module has of a root, if it was not looked at before.

        Args:
            number: of the root.
            root: the module that is trained.
            other: one that no optimizer trains.
            not_followed: identities of modules that are followed already, and of what is trained.
        """
        looked = self._looked.get(other) or frozenset()
        if number in looked:
            return
        self._looked.put(other, looked | {number})
        try:
            pairs = parts_like(root, other)
        except Exception:
            # As in `_add`: numbers that cannot be read, or are spread over processes.
            return
        for copy, part in pairs:
            is_trained = any(id(each) in not_followed for each in copy.parameters())
            if not is_trained and id(copy) not in not_followed:
                weights = _of_module(part)
                self._add(number, copy, _of_module(copy), weights, is_sure=False, model=part)

    def _add(
        self,
        number: int,
        held: Any,
        read: Read,
        weights: Read,
        *,
        is_sure: bool = True,
        model: Any = None,
    ) -> bool:
        try:
            copy = _Copy(number, held, read, weights, is_sure=is_sure, model=model)
            if self._updates == 1:
                copy.note_start()
        except Exception:
            # What cannot be read cannot be followed, and is none of the script's concern.
            return False
        copy.since = self._updates
        self._copies.append(copy)
        return True

    def _look(self, trained: set[int]) -> None:
        self._copies = [copy for copy in self._copies if copy.look(trained)]

    def report(self) -> list[dict[str, Any]]:
        """Return, for each copy that is still there: `root`, `since` (an update), and for each
        update from then on `moved`, `doubt` and `rest`, see `_Way.look`. `buffers` has the same of
        a module's buffers, None without; `start` are formats and digest before the first update,
        empty of a copy that was made later."""
        self._look(set())
        return [copy.to_json() for copy in self._copies if copy.is_average]


def _of_module(module: Any) -> Read:
    held = weakref.ref(module)

    def read() -> Tensors | None:
        module = held()
        return None if module is None else list(module.parameters())

    return read


def _of_names(root: Any, names: Sequence[str]) -> Read:
    held = weakref.ref(root)

    def read() -> Tensors | None:
        root = held()
        if root is None:
            return None
        named = dict(root.named_parameters())
        return [named[name] for name in names]

    return read


def _of_container(container: Any, places: list[Any]) -> Read:
    # Lists and dicts have no weak references: one that only this function holds is dropped.
    held = [container]

    def read() -> Tensors | None:
        if not held or sys.getrefcount(held[0]) <= _ALONE:
            held.clear()
            return None
        return [held[0][place] for place in places]

    return read


class _Way:
    """Drawn elements of tensors that move towards others.

    Args:
        tensors: that move.
        others: which they move towards, in the same order.
        generator: which elements are drawn.
    """

    def __init__(self, tensors: Tensors, others: Tensors, generator: torch.Generator) -> None:
        each = max(4, _ELEMENTS // max(1, len(others)))
        self._elements = [Elements(tensor, each, generator) for tensor in others]
        dtypes = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        self._eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=2.0**-23)
        self._last = self.read(tensors)
        self.rows: list[list[float]] = []

    def read(self, tensors: Tensors) -> Vector:
        """Return the elements of all tensors."""
        pairs = zip(self._elements, tensors, strict=True)
        return numpy.concatenate([elements.of(tensor) for elements, tensor in pairs])

    def look(self, tensors: Tensors, target: Vector) -> None:
        """Note which share of their way to a target the tensors have gone since the last look.

        `doubt` is what the rounding of their format leaves unsure of that share, `rest` the
        movement that did not lead to the target, as a share of the way.
        """
        now = self.read(tensors)
        with numpy.errstate(all="ignore"):
            way, gone = target - self._last, now - self._last
            length = float(way @ way)
            share = float(gone @ way) / length if length else 0.0
            size = length**0.5
            rounding = self._eps * float(numpy.linalg.norm(now))
            rest = float(numpy.linalg.norm(gone - share * way))
        self.rows.append([share, rounding / size if size else 1.0, rest / size if size else 0.0])
        self._last = now

    def to_json(self) -> dict[str, list[float]]:
        moved, doubt, rest = ([row[at] for row in self.rows] for at in range(3))
        return {"moved": moved, "doubt": doubt, "rest": rest}


class _Copy:
    """One copy, and what it is followed on.

    Args:
        number: of the module that is trained, among the roots.
        held: the copy.
        read: its tensors, None when it is no more.
        weights: those of the trained module, in the same order.
        is_sure: False if only its movements tell whether it is an average.
        model: the trained module, where the copy is one.
    """

    def __init__(
        self, number: int, held: Any, read: Read, weights: Read, *, is_sure: bool, model: Any
    ) -> None:
        self.number, self.key, self.since = number, id(held), 0
        # Of a container only the tensors that are followed.
        self._whole = weakref.ref(held) if isinstance(held, torch.nn.Module) else None
        self._digests: list[str] = []
        self._tensors, self._weights, self._is_sure = read, weights, is_sure
        generator = torch.Generator().manual_seed(number)
        tensors, trained = read() or (), weights() or ()
        self._way = _Way(tensors, trained, generator)
        self.start: list[Any] = []
        self._model = None if model is None else weakref.ref(model)
        self._of_buffers: _Way | None = None
        buffers = _float_buffers(self._whole), _float_buffers(self._model)
        if buffers[0] and [b.shape for b in buffers[0]] == [b.shape for b in buffers[1]]:
            self._of_buffers = _Way(*buffers, generator)
            self._target = self._of_buffers.read(buffers[1])

    @property
    def is_average(self) -> bool:
        """False if it is a container that hardly ever moves."""
        rows = self._way.rows
        moves = sum(row[0] != 0 for row in rows)
        return self._is_sure or moves >= max(_MOVES, _SHARE * len(rows))

    def note_start(self) -> None:
        """Nothing was updated yet: it is what the script has made it."""
        tensors = self._tensors() or ()
        self.start = [[str(tensor.dtype) for tensor in tensors], digest.of_nested([*tensors])]

    def look(self, trained: set[int]) -> bool:
        """Note how far it has gone towards the weights; False if it is no more, or trained now.

        An update averages the buffers that the forward before it has left, so it is those of the
        look before that its own move towards.
        """
        try:
            tensors, weights = self._tensors(), self._weights()
            if tensors is None or weights is None:
                return False
            if self._whole is not None and any(id(each) in trained for each in tensors):
                return False
            self._way.look(tensors, self._way.read(weights))
            if self._of_buffers is not None:
                self._of_buffers.look(_float_buffers(self._whole), self._target)
                self._target = self._of_buffers.read(_float_buffers(self._model))
            module = None if self._whole is None else self._whole()
            others = () if module is None else module.buffers()
            self._digests.append(digest.of_nested([*tensors, *others]))
        except Exception:
            return False
        return True

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.number,
            "since": self.since,
            **self._way.to_json(),
            "buffers": None if self._of_buffers is None else self._of_buffers.to_json(),
            "start": self.start,
            "digests": self._digests,
        }


def _float_buffers(module: "weakref.ref[Any] | None") -> Tensors:
    held = None if module is None else module()
    return [] if held is None else [b for b in held.buffers() if b.is_floating_point()]
