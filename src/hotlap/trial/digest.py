"""Fast digests of tensors: equal bits give equal digests, others collide once in 2^60."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy
import torch

from hotlap.distributed.shares import local_of

_SEED = 20240229


@lru_cache(maxsize=64)
def _multipliers(words: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    low, high = -(2**63), 2**63 - 1
    odd = torch.randint(low, high, (words,), generator=generator, dtype=torch.int64) | 1
    return odd.to(device)


def of_tensor(tensor: torch.Tensor) -> int:
    """Return a 64-bit digest of a tensor's bits, in logical order, its shape and dtype included.

    A wrapping sum of the 64-bit words, each times a random odd number: any device can do it, and
    25,000 words take some ten microseconds.
    """
    return of_tensors([tensor])[0]


def of_tensors(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the digest of each; the host waits for a device once, not for each of them."""
    summed, rest = [], []
    for tensor in tensors:
        raw = _bytes_of(tensor)
        words = raw.numel() // 8
        summed.append(_sum_of(raw, words))
        # A copy: what was made of a tensor is not held beside it.
        rest.append(raw[words * 8 :].clone())
    sums, tails = _read(summed, torch.int64), _read(rest, torch.uint8)
    found = []
    for tensor, total, last in zip(tensors, sums, tails, strict=True):
        tail = bytes(last)
        extra = hashlib.blake2b(
            repr((tuple(tensor.shape), str(tensor.dtype), tail)).encode(), digest_size=8
        ).digest()
        found.append((sum(total) ^ int.from_bytes(extra, "little")) & (2**64 - 1))
    return found


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    data = local_of(tensor.detach())
    if data.is_sparse or data.is_quantized:
        data = data.dequantize() if data.is_quantized else data.to_dense()
    return data.contiguous().reshape(-1).view(torch.uint8)


def _sum_of(raw: torch.Tensor, words: int) -> torch.Tensor:
    """Return the sum over whole words, int64, shape (1,), or (0,) if there are none."""
    head = raw[: words * 8]
    if head.storage_offset() % 8:
        head = head.clone()
    numbers = head.view(torch.int64)
    return (numbers * _multipliers(words, str(raw.device))).sum().reshape(1) if words else numbers


def _read(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> list[list[int]]:
    """Return the numbers of each part, all of a device read at once."""
    found: list[list[int]] = [[] for _ in parts]
    for device in {part.device for part in parts if part.numel()}:
        there = [
            place for place, part in enumerate(parts) if part.numel() and part.device == device
        ]
        numbers = iter(torch.cat([parts[place].to(dtype) for place in there]).tolist())
        for place in there:
            found[place] = list(islice(numbers, parts[place].numel()))
    return found


def of_nested(value: Any) -> str:
    """Return the digest, as hex, of whatever a loader or a module's caller hands over."""
    state = hashlib.blake2b(digest_size=8)
    _update(state, value, iter(of_tensors(list(_tensors_in(value)))))
    return state.hexdigest()


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Give the tensors in the order in which `_update` comes to them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from _tensors_in(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from _tensors_in(getattr(value, item.name))


def _update(state: Any, value: Any, digests: Iterator[int]) -> None:
    if isinstance(value, torch.Tensor):
        state.update(next(digests).to_bytes(8, "little"))
    elif isinstance(value, Mapping):
        for key in value:
            state.update(repr(key).encode())
            _update(state, value[key], digests)
    elif isinstance(value, list | tuple):
        state.update(f"{len(value)}[".encode())
        for item in value:
            _update(state, item, digests)
    elif isinstance(value, numpy.ndarray):
        state.update(repr((value.shape, str(value.dtype))).encode())
        state.update(value.tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        named = {item.name: getattr(value, item.name) for item in fields(value)}
        _update(state, named, digests)
    elif isinstance(value, int | float | str | bytes | bool | type(None)):
        state.update(repr(value).encode())
    else:
        # Without a value of its own an object can only be told apart by its kind.
        state.update(type(value).__qualname__.encode())
