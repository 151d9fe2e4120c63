"""`UntrainedCustody`: when do tensors change that no optimizer updates, within steps or between?"""

from collections.abc import Iterable
from typing import Any

import torch

from hotlap.trial import digest
from hotlap.trial.repetition_ways import BUFFER

Named = Iterable[tuple[str, torch.Tensor]]


class UntrainedCustody:
    """Digests buffers, and parameters that no optimizer has, after each update, before the next
    forward, and when the model is evaluated in between.

    Updates are counted from 0, over all optimizers.
    """

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._moved: dict[str, list[int]] = {}
        self._moved_in_evaluation: dict[str, list[int]] = {}
        self._changed: set[str] = set()
        self._left: dict[str, int] = {}
        self._is_first = True

    def forward_begins(self, tensors: Named) -> None:
        """A forward begins; looks before the first one after an update."""
        if not self._is_first:
            return
        self._is_first = False
        for name in self._look(tensors):
            self._moved.setdefault(name, []).append(len(self._digests))

    def evaluation(self, tensors: Named) -> None:
        """The model is evaluated between an update and the next forward in training."""
        if not self._digests or not self._is_first:
            return
        left = self._left
        for name in self._look(tensors):
            updates = self._moved_in_evaluation.setdefault(name, [])
            if updates[-1:] != [len(self._digests)]:
                updates.append(len(self._digests))
        # It is the update that the next forward is compared with.
        self._left = left

    def update_ends(self, tensors: Named) -> None:
        """An update has ended."""
        self._changed.update(self._look(tensors))
        self._digests.append(digest.of_nested(list(self._left.values())))
        self._is_first = True

    def _look(self, tensors: Named) -> list[str]:
        """Digest the tensors; return the names of those that are others than before."""
        named = dict(tensors)
        found = dict(zip(named, digest.of_tensors(list(named.values())), strict=True))
        differ = [name for name in found if self._left.get(name, found[name]) != found[name]]
        self._left = found
        return differ

    def report(self) -> dict[str, Any]:
        """Return `untrained` (a digest after each update), `untrained_moved` (name -> updates after
        which a tensor moved before the next forward), `untrained_in_evaluation` (the same of what
        is evaluated in between) and `untrained_changed` (what any step changes)."""
        return {
            "untrained": self._digests,
            "untrained_moved": self._moved,
            "untrained_in_evaluation": self._moved_in_evaluation,
            "untrained_changed": sorted(self._changed),
        }


def start_of(parameters: Named, buffers: Named) -> dict[str, list[Any]]:
    """Return name -> digest and `requires_grad` of each parameter, or `BUFFER`."""
    found: dict[str, list[Any]] = {
        name: [digest.of_tensor(weight), weight.requires_grad] for name, weight in parameters
    }
    return found | {name: [digest.of_tensor(buffer), BUFFER] for name, buffer in buffers}
