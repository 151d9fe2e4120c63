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
_said: set[tuple[str, str]] = set()
"""Of which buffers what was said."""


def say_first_ranks(name: str) -> None:
    """Say, once a process, that a buffer is that of the first rank."""
    _say(name, "is computed from each rank's own samples: that of the first rank is used and saved")


def say_each_ranks(name: str) -> None:
    """Say, once a process, that each rank has its own buffer of that name."""
    words = "has another shape on other ranks, or another dtype, or is missing on some: each rank"
    _say(name, f"{words} uses its own, and that of the first rank is saved")


def _say(name: str, words: str) -> None:
    if (name, words) not in _said:
        _said.add((name, words))
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
        self._sent: dict[str, tuple[dict[str, Any], str, list[int]]] = {}
        """Path of a buffer that was another one on some rank -> where it is, its name there, and
        its shape on every rank."""
        self._steps = 0

    def take_first_ranks(self) -> None:
        """Make buffers what they are on the first rank, before a step of all ranks."""
        if not self._places:
            return
        # After a power of two, and where ranks may no longer have buffers of one shape.
        if (self._steps and not self._steps & (self._steps - 1)) or self._is_any_reshaped():
            self._find()
        self._steps += 1
        if self._sent:
            buffers = [owner[key] for owner, key, _ in self._sent.values()]
            self._reduce.send_tensors(buffers, [0] * len(buffers))

    def _is_any_reshaped(self) -> bool:
        if not self._sent:
            return False
        own = any(_shape(owner, key) != shape for owner, key, shape in self._sent.values())
        return bool(self._reduce.most([float(own)])[0])

    def _find(self) -> None:
        own = {
            name: [list(owner[key].shape), _digests_of(owner[key])]
            for name, owner, key in self._places
            if owner.get(key) is not None
        }
        told, is_first = self._reduce.gather(own), self._reduce.rank == 0
        for name, owner, key in self._places:
            found = [each.get(name) for each in told]
            shapes = [None if each is None else each[0] for each in found]
            was_sent = self._sent.pop(name, None) is not None
            if shapes.count(shapes[0]) < len(shapes):
                if is_first:
                    say_each_ranks(name)
            elif shapes[0] is not None and (was_sent or found.count(found[0]) < len(found)):
                self._sent[name] = owner, key, shapes[0]
                if is_first:
                    say_first_ranks(name)


def _shape(owner: dict[str, Any], key: str) -> list[int] | None:
    buffer = owner.get(key)
    return None if buffer is None else list(buffer.shape)


def _digests_of(buffer: torch.Tensor) -> list[int]:
    return digest.of_tensors(buffer.detach().reshape(-1).split(_CHUNK), everywhere=True)
