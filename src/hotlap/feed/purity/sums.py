"""Checksums over the bytes of arrays and tensors, by which a change in place is found."""

from typing import Any

import torch

from hotlap.feed.purity.same_bytes import as_bytes

_COLUMNS = 1024


def sum_of_tensor(tensor: torch.Tensor) -> int:
    """Return a sum that nearly every change in place moves, a swap of two values too."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        return 0
    octets = as_bytes(tensor)
    words = octets[: octets.numel() // 8 * 8]
    # Of nothing torch asks for the place as well, but says that it lies at 0.
    if words.data_ptr() % 8 or words.storage_offset() % 8:
        words = words.clone()
    table = words.view(torch.int64)
    rest = octets[table.numel() * 8 :].tolist()
    whole = table[: table.numel() // _COLUMNS * _COLUMNS].view(-1, _COLUMNS)
    tail = table[whole.numel() :]
    # Of numpy's and torch's sums along either direction the faster one.
    down = torch.from_numpy(whole.numpy().sum(0))
    parts = [(down, 1), (whole.sum(1), 3), (tail, 5)]
    # Every position has a weight of its own in one of the two directions.
    total = sum(int((part * _weights(part.numel(), odd)).sum()) for part, odd in parts)
    return hash((total, tuple(rest)))


def _weights(count: int, odd: int) -> torch.Tensor:
    return torch.arange(1, count + 1, device="cpu").mul_(2).add_(odd).mul_(0x5851F42D4C957F2D)


def sum_of_array(numpy: Any, array: Any) -> int:
    """Return `sum_of_tensor` of an array, 0 of a mapped file."""
    # A mapped file would be read from the disk, all of it, for every epoch.
    if isinstance(array, numpy.memmap) or isinstance(array.base, numpy.memmap) or array.size == 0:
        return 0
    octets = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    if not octets.flags.writeable:
        octets = octets.copy()
    return sum_of_tensor(torch.from_numpy(octets))
