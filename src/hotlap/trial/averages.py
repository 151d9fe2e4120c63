"""Follows copies of a model that a run keeps beside it: averages of its weights, for one."""

import gc
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from hotlap.trial import digest
from hotlap.trial.elements import Elements, Vector

_ELEMENTS = 1024


class Averages:
    """Notes at each update how far copies have moved towards the weights since the one before.

    A copy is a module of the same class and the same shapes as one that is trained, whose
    parameters are its own. Copies are looked for at the updates 1, 2, 4, 8 and so on.
    """

    def __init__(self) -> None:
        self._copies: list[_Copy] = []
        self._updates = 0

    def begins(self, roots: Sequence[Any]) -> list[Any]:
        """An update begins: the copies are what the step before has made of them.

        Args:
            roots: the modules that are trained.

        Returns:
            Copies that were not known before.
        """
        for copy in self._copies:
            copy.look()
        self._updates += 1
        # A power of two: what a long run has made by then is found, at a price that ends.
        if self._updates & (self._updates - 1):
            return []
        known = {id(copy.module) for copy in self._copies}
        found = [
            _Copy(number, module, root, self._updates)
            for number, root in enumerate(roots)
            for module in _copies_of(root)
            if id(module) not in known
        ]
        self._copies += found
        return [copy.module for copy in found]

    def report(self) -> list[dict[str, Any]]:
        """Return, for each copy: `root`, `since` (an update), and for each update from then on
        `moved`, `doubt` and `rest`, see `_Copy.look`; and the `digest` of all it holds now."""
        for copy in self._copies:
            copy.look()
        return [copy.to_json() for copy in self._copies]


def _copies_of(root: Any) -> list[Any]:
    kind, own = type(root), {id(parameter) for parameter in root.parameters()}
    shapes = [parameter.shape for parameter in root.parameters()]
    found = []
    for candidate in gc.get_objects():
        # Not isinstance, which asks objects that answer with code of their own.
        if type(candidate) is kind and candidate is not root:
            theirs = list(candidate.parameters())
            if [p.shape for p in theirs] == shapes and not any(id(p) in own for p in theirs):
                found.append(candidate)
    return found


class _Copy:
    """One copy, and the drawn elements that it is followed on."""

    def __init__(self, number: int, module: Any, root: Any, since: int) -> None:
        self.number, self.module, self.root, self.since = number, module, root, since
        generator = torch.Generator().manual_seed(since)
        parameters = list(root.parameters())
        each = max(4, _ELEMENTS // max(1, len(parameters)))
        self._elements = [Elements(parameter, each, generator) for parameter in parameters]
        self._last = self._read(module)
        self._rows: list[list[float]] = []

    def _read(self, module: Any) -> Vector:
        pairs = zip(self._elements, module.parameters(), strict=True)
        return numpy.concatenate([elements.of(parameter) for elements, parameter in pairs])

    def look(self) -> None:
        """Note which share of its way to the weights the copy has gone.

        `doubt` is what the rounding of its format leaves unsure of that share, `rest` the movement
        that did not lead to the weights, as a share of the way.
        """
        now, weights = self._read(self.module), self._read(self.root)
        way, gone = weights - self._last, now - self._last
        length = float(way @ way)
        share = float(gone @ way) / length if length else 0.0
        rest = gone - share * way
        rounding = 2.0**-23 * float(numpy.linalg.norm(now))
        size = length**0.5
        doubt = rounding / size if size else 1.0
        self._rows.append([share, doubt, float(numpy.linalg.norm(rest)) / size if size else 0.0])
        self._last = now

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.number,
            "since": self.since,
            "moved": [row[0] for row in self._rows],
            "doubt": [row[1] for row in self._rows],
            "rest": [row[2] for row in self._rows],
            "digest": digest.of_nested(list(self.module.state_dict().values())),
        }
