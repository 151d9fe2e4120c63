"""`BufferCustody`: which buffers do steps change, and which change between two steps?"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hotlap.trial import digest
from hotlap.trial.repetition_ways import BUFFER


class BufferCustody:
    """Digests the buffers of the models after each update, and before the next forward.

    Updates are counted from 0, over all optimizers; buffers have the names `MODEL.NAME`.
    """

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._moved: list[tuple[int, list[str]]] = []
        self._changed: set[str] = set()
        self._left: dict[str, int] = {}
        self._is_first = True

    def forward_begins(self, models: Sequence[Any]) -> None:
        """A training forward begins; looks before the first one after an update."""
        if not self._is_first:
            return
        self._is_first = False
        moved = self._look(models)
        if moved:
            self._moved.append((len(self._digests), moved))

    def update_ends(self, models: Sequence[Any]) -> None:
        """An update has ended."""
        self._changed.update(self._look(models))
        self._digests.append(digest.of_nested(list(self._left.values())))
        self._is_first = True

    def _look(self, models: Sequence[Any]) -> list[str]:
        """Digest the buffers; return the names of those that are others than before."""
        named = {
            f"{number}.{name}": buffer
            for number, model in enumerate(models, 1)
            for name, buffer in model.named_buffers()
        }
        found = dict(zip(named, digest.of_tensors(list(named.values())), strict=True))
        differ = [name for name in found if self._left.get(name, found[name]) != found[name]]
        self._left = found
        return differ

    def report(self) -> dict[str, Any]:
        """Return `buffers` (a digest after each update), `buffers_moved` (rows of an update before
        which buffers moved, and their names) and `buffers_changed` (what any step changes)."""
        return {
            "buffers": self._digests,
            "buffers_moved": [[update, names] for update, names in self._moved],
            "buffers_changed": sorted(self._changed),
        }


def start_of(
    parameters: Iterable[tuple[str, torch.Tensor]], buffers: Iterable[tuple[str, torch.Tensor]]
) -> dict[str, list[Any]]:
    """Return name -> digest and `requires_grad` of each parameter, or `BUFFER`."""
    found: dict[str, list[Any]] = {
        name: [digest.of_tensor(weight), weight.requires_grad] for name, weight in parameters
    }
    return found | {name: [digest.of_tensor(buffer), BUFFER] for name, buffer in buffers}
