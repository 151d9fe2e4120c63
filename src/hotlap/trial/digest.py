"""Fast digests of tensors: equal bits give equal digests, others do once in 2^31 at the most."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy
import torch

from hotlap.distributed.shares import local_of
from hotlap.trial.protocol import UNREAD

_SEED = 20240229
_OF_HIGH_HALF = 0x1E3779B97F4A7C16
"""What the high half of a word counts besides. Even, but no multiple of 4: then, whichever of its
halves change their top bits, the change of a word is divisible by 2^32 at the most."""


@lru_cache(maxsize=64)
def _multipliers(words: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    low, high = -(2**63), 2**63 - 1
    odd = torch.randint(low, high, (words,), generator=generator, dtype=torch.int64) | 1
    return odd.to(device)


def of_tensor(tensor: torch.Tensor) -> int:
    """Return a 64-bit digest of a tensor's bits, in logical order, its shape and dtype included.

    A wrapping sum of the 64-bit words, each times a random odd number: any device can do it. Of a
    product the top bits of a word reach the top bits only, where an even number of them would
    cancel, as the signs of numbers do: so the high half is added to each word first, times a number
    of its own.
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
    if data.is_quantized:
        data = data.dequantize()
    if data.layout != torch.strided:
        data = data.to_dense()
    # What is conjugated or negated only when it is read has other bytes than it shows.
    data = data.resolve_conj().resolve_neg()
    return data.contiguous().reshape(-1).view(torch.uint8)


def _sum_of(raw: torch.Tensor, words: int) -> torch.Tensor:
    """Return the sum over whole words, int64, shape (1,), or (0,) if there are none."""
    head = raw[: words * 8]
    if head.storage_offset() % 8:
        head = head.clone()
    numbers = head.view(torch.int64)
    if not words:
        return numbers
    high = numbers >> 32
    mixed = torch.add(numbers, high, alpha=_OF_HIGH_HALF, out=high)
    return mixed.mul_(_multipliers(words, str(raw.device))).sum().reshape(1)


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


def of_readable(value: Any) -> str:
    """Return `of_nested`, or what is raised where a value cannot be read: a script may go on."""
    try:
        return of_nested(value)
    except Exception as error:
        # It is the same in each run.
        return f"{UNREAD}{type(error).__name__}"


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Give the tensors in the order in which `_update` comes to them."""
    value = _opened(value)
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


def _opened(value: Any) -> Any:
    """Return a list for what has no bytes of its own: nested tensors, arrays of objects."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return list(value.unbind())
    if isinstance(value, numpy.ndarray) and value.dtype.hasobject:
        # Its bytes are addresses, which differ in each run.
        return value.tolist()
    return value


def _update(state: Any, value: Any, digests: Iterator[int]) -> None:
    value = _opened(value)
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
