"""`LearnedBuffers`: what a model computes from its samples in buffers is that of the first rank."""

import logging
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from hotlap.distributed.reduce import Reduce
from hotlap.trial import digest

log = logging.getLogger("hotlap")

_CHUNK = 2**20
"""Elements of which a digest is made at once: it takes as much memory again, and keeps it."""
_said: set[str] = set()
"""Buffers that were said to differ between ranks."""


def say_first_ranks(name: str) -> None:
    """Say, once a process, that a buffer is that of the first rank."""
    _say(name, "is computed from each rank's own samples: that of the first rank is used and saved")


def _say(name: str, words: str) -> None:
    if name not in _said:
        _said.add(name)
        log.warning("the model's buffer '%s' %s", name, words)


class LearnedBuffers:
    """Lets every rank begin a step with the first one's buffers, where ranks would have others.

    So does `DistributedDataParallel`. A codebook, or a queue of samples, would otherwise be another
    one on each rank. Running statistics of normalization layers are not sent: training does not
    read them, and evaluation takes the first rank's. Which buffers differ is looked at after 1, 2,
    4, 8 steps and so on, since a model may begin late to write to one.

    Args:
        model: the same on every rank.
        reduce: the ranks.
    """

    def __init__(self, model: Any, reduce: Reduce) -> None:
        self._reduce = reduce
        self._places = [
            (f"{path}.{key}" if path else key, module._buffers, key)
            for path, module in model.named_modules()
            if not isinstance(module, _NormBase)
            for key, buffer in module._buffers.items()
            if buffer is not None and buffer.layout == torch.strided
        ]
        self._sent: dict[str, tuple[dict[str, Any], str]] = {}
        """Path of a buffer that was another one on some rank -> where it is, and its name there."""
        self._steps = 0

    def take_first_ranks(self) -> None:
        """Make buffers what they are on the first rank, before a step of all ranks."""
        if not self._places:
            return
        # After a power of two.
        if self._steps and not self._steps & (self._steps - 1):
            self._find()
        self._steps += 1
        if self._sent:
            buffers = [owner[key] for owner, key in self._sent.values()]
            self._reduce.send_tensors(buffers, [0] * len(buffers))

    def _find(self) -> None:
        own = {
            name: [list(owner[key].shape), _digests_of(owner[key])]
            for name, owner, key in self._places
            if owner.get(key) is not None
        }
        told, is_first = self._reduce.gather(own), self._reduce.rank == 0
        for name, owner, key in self._places:
            found = [each.get(name) for each in told]
            if found.count(found[0]) == len(found):
                continue
            if None not in found and all(each[0] == found[0][0] for each in found):
                self._sent[name] = owner, key
                if is_first:
                    say_first_ranks(name)
            elif is_first:
                words = "has another shape on other ranks: each rank uses its own, and that of the "
                _say(name, f"{words}first rank is saved")


def _digests_of(buffer: torch.Tensor) -> list[int]:
    return digest.of_tensors(buffer.detach().reshape(-1).split(_CHUNK))
