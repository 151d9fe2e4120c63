"""Follows averaged copies of a model (EMA, SWA) and digests them at every update."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from hotlap.trial.elements import Elements, Vector

_ELEMENTS = 1024


class Averages:
    """Notes at each update how far copies have moved towards the weights since the one before.

    A copy is a module of the same class and the same shapes as one that is trained, whose
    parameters are its own, and no optimizer's. Copies are looked for at the updates 1, 2, 4, 8 and
    so on; one that the script drops, or changes into something else, is forgotten.
    """

    def __init__(self) -> None:
        self._copies: list[_Copy] = []
        self._updates = 0

    def update_begins(self, roots: Sequence[Any], trained: set[int]) -> list[Any]:
        """An update begins: the copies are what the step before has made of them.

        Args:
            roots: the modules that are trained.
            trained: ids of the parameters that an optimizer holds.

        Returns:
            Copies that were not known before.
        """
        self._look()
        self._updates += 1
        # A power of two: what a long run has made by then is found, at a price that ends.
        if self._updates & (self._updates - 1):
            return []
        known = {id(copy.module()) for copy in self._copies}
        found = []
        for number, root in enumerate(roots):
            for module in _copies_of(root, trained):
                copy = None if id(module) in known else _copy_or_none(number, module, root)
                if copy is not None:
                    copy.since = self._updates
                    self._copies.append(copy)
                    found.append(module)
        return found

    def _look(self) -> None:
        self._copies = [copy for copy in self._copies if copy.look()]

    def report(self) -> list[dict[str, Any]]:
        """Return, for each copy that is still there: `root`, `since` (an update), and for each
        update from then on `moved`, `doubt` and `rest`, see `_Copy.look`."""
        self._look()
        return [copy.to_json() for copy in self._copies]


def _copies_of(root: Any, trained: set[int]) -> list[Any]:
    kind = type(root)
    own = {id(parameter) for parameter in root.parameters()} | trained
    shapes = [parameter.shape for parameter in root.parameters()]
    found = []
    for candidate in gc.get_objects():
        # Not isinstance, which asks objects that answer with code of their own.
        if type(candidate) is not kind or candidate is root:
            continue
        try:
            theirs = list(candidate.parameters())
            fits = [p.shape for p in theirs] == shapes and not any(p.is_meta for p in theirs)
        except Exception:
            # It is still being made, or lazy: no copy of a module that is trained.
            continue
        if fits and not any(id(p) in own for p in theirs):
            found.append(candidate)
    return found


def _copy_or_none(number: int, module: Any, root: Any) -> "_Copy | None":
    try:
        return _Copy(number, module, root)
    except Exception:
        # What cannot be read cannot be followed, and is none of the script's concern.
        return None


class _Copy:
    """One copy, and the drawn elements that it is followed on."""

    def __init__(self, number: int, module: Any, root: Any) -> None:
        self.number, self.since = number, 0
        self.module, self.root = weakref.ref(module), weakref.ref(root)
        generator = torch.Generator().manual_seed(number)
        parameters = list(root.parameters())
        each = max(4, _ELEMENTS // max(1, len(parameters)))
        self._elements = [Elements(parameter, each, generator) for parameter in parameters]
        dtypes = [p.dtype for p in module.parameters() if p.is_floating_point()]
        self._eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=2.0**-23)
        self._last = self._read(module)
        self._rows: list[list[float]] = []

    def _read(self, module: Any) -> Vector:
        pairs = zip(self._elements, module.parameters(), strict=True)
        return numpy.concatenate([elements.of(parameter) for elements, parameter in pairs])

    def look(self) -> bool:
        """Note which share of its way to the weights the copy has gone; False if it is no more.

        `doubt` is what the rounding of its format leaves unsure of that share, `rest` the movement
        that did not lead to the weights, as a share of the way.
        """
        module, root = self.module(), self.root()
        if module is None or root is None:
            return False
        try:
            now, weights = self._read(module), self._read(root)
        except Exception:
            return False
        with numpy.errstate(all="ignore"):
            way, gone = weights - self._last, now - self._last
            length = float(way @ way)
            share = float(gone @ way) / length if length else 0.0
            size = length**0.5
            rounding = self._eps * float(numpy.linalg.norm(now))
            rest = float(numpy.linalg.norm(gone - share * way))
        self._rows.append([share, rounding / size if size else 1.0, rest / size if size else 0.0])
        self._last = now
        return True

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.number,
            "since": self.since,
            "moved": [row[0] for row in self._rows],
            "doubt": [row[1] for row in self._rows],
            "rest": [row[2] for row in self._rows],
        }
