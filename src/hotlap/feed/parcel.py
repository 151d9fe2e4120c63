"""A small batch's way out of a worker process: its bytes, not a handle to shared memory.

For each tensor in shared memory the two processes open a connection and prove to each other who
they are, while the worker would rather decode. A copy of some hundred kilobytes takes less.
"""

from collections.abc import Callable
from typing import Any

import torch

from hotlap.feed.gather import flatten, rebuild

MOST_BYTES = 2**20
"""What is larger goes by shared memory."""


def parcel(batch: Any) -> Any:
    """Return what becomes `batch` when it is unpickled, or the batch itself if it is no small one.

    Args:
        batch: tensors, in lists, tuples and dictionaries.
    """
    leaves: list[torch.Tensor] = []
    spec = flatten(batch, leaves)
    if spec is None or not all(map(_is_plain, leaves)):
        return batch
    return _Parcel(spec, leaves) if sum(leaf.nbytes for leaf in leaves) <= MOST_BYTES else batch


class Parcels:
    """A collate function whose small batches are sent as bytes; for worker processes only.

    Args:
        collate: makes a batch of a list of samples.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        return parcel(self.collate(samples))


class _Parcel:
    """Becomes the batch when it is unpickled."""

    def __init__(self, spec: Any, leaves: list[torch.Tensor]) -> None:
        self.spec, self.leaves = spec, leaves

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.spec, [_written(leaf) for leaf in self.leaves])


def _is_plain(leaf: torch.Tensor) -> bool:
    return leaf.device.type == "cpu" and leaf.layout == torch.strided and not leaf.is_quantized


def _written(leaf: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytearray]:
    plain = leaf.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return leaf.dtype, tuple(leaf.shape), bytearray(plain.view(torch.uint8).numpy())


def _opened(spec: Any, written: list[tuple[torch.dtype, tuple[int, ...], bytearray]]) -> Any:
    leaves = []
    for dtype, shape, octets in written:
        # Memory that torch aligns: sums may depend on where a row of numbers begins.
        leaf = torch.empty(shape, dtype=dtype)
        if octets:
            leaf.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(octets, dtype=torch.uint8))
        leaves.append(leaf)
    return rebuild(spec, iter(leaves))
