"""Fast digests of tensors: equal bits give equal digests, others do once in 2^31 at the most.

Digests of one process can be compared with those of another on the same host, those that are made
`everywhere` with those of any host.
"""

import contextlib
import ctypes
import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy
import torch
import xxhash

from hotlap.device import process_settings
from hotlap.distributed.shares import local_of
from hotlap.trial.not_read import not_read_in, not_read_words
from hotlap.trial.protocol import UNREAD

_SEED = 20240229
_OF_HIGH_HALF = 0x1E3779B97F4A7C16
"""What the high half of a word counts besides. Even, but no multiple of 4: then, whichever of its
halves change their top bits, the change of a word is divisible by 2^32 at the most."""
_SHOWN_WHOLE = (
    *(int, float, complex, str, bytes, bytearray, range, slice, type(None)),
    *(date, time, timedelta, PurePath, torch.dtype, torch.device),
)
"""Kinds whose `repr` says everything of a value."""
_MOST_OBJECTS = 1000
"""Objects of a value whose attributes are read: it is done for every batch of a proof."""
_MOST_BYTES = 2**26
"""Of tensors and arrays that an object holds."""
_DEEPEST = 20
"""Objects within each other whose attributes are read."""


@lru_cache(maxsize=64)
def _multipliers(words: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    low, high = -(2**63), 2**63 - 1
    # Named, as a script may have set another default: the generator is one of the CPU.
    drawn = torch.randint(low, high, (words,), generator=generator, dtype=torch.int64, device="cpu")
    return (drawn | 1).to(device)


def of_tensor(tensor: torch.Tensor) -> int:
    """Return a 64-bit digest of a tensor's bits, in logical order, its shape and dtype included."""
    return of_tensors([tensor])[0]


def of_tensors(tensors: Sequence[torch.Tensor], *, everywhere: bool = False) -> list[int]:
    """Return the digest of each; the host waits for a device once, not for each of them.

    Args:
        tensors: what is read.
        everywhere: True for digests that are the same on every host.
    """
    if not everywhere and _is_on_cpu():
        return [
            _of_bytes(_bytes_of(tensor)) ^ _of_kind(tensor.shape, tensor.dtype)
            for tensor in tensors
        ]
    return _of_words(tensors)


@lru_cache
def _is_on_cpu() -> bool:
    """True if every tensor of this host is on the CPU."""
    kind = torch.accelerator.current_accelerator()
    return kind is None or (kind.type == "cuda" and not process_settings.has_cuda())


def _of_bytes(raw: torch.Tensor) -> int:
    raw, size = raw.cpu(), raw.numel()
    # Not by `numpy()`, after which the script could not resize its tensor any more.
    there = (ctypes.c_char * size).from_address(raw.data_ptr()) if size else b""
    return xxhash.xxh3_64_intdigest(there)


@lru_cache(maxsize=4096)
def _of_kind(shape: torch.Size, dtype: torch.dtype, tail: bytes = b"") -> int:
    kind = repr((tuple(shape), str(dtype), tail)).encode()
    return int.from_bytes(hashlib.blake2b(kind, digest_size=8).digest(), "little")


def _of_words(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the digest of each, computed where it is, equal on every device.

    A wrapping sum of the 64-bit words, each times a random odd number. Of a product the top bits of
    a word reach the top bits only, where an even number of them would cancel, as the signs of
    numbers do: so the high half is added to each word first, times a number of its own.
    """
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
        found.append((sum(total) ^ _of_kind(tensor.shape, tensor.dtype, bytes(last))) & (2**64 - 1))
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


def of_nested(value: Any, leave_out: Callable[[torch.Tensor], bool] = lambda _: False) -> str:
    """Return the digest, as hex, of whatever a loader or a module's caller hands over.

    Behind it stand the kinds of objects in it that nothing but their kind is known of.

    Args:
        value: what is to be read.
        leave_out: whether a tensor in it is not.
    """
    parts = _Parts(leave_out)
    parts.add(value)
    digests = iter(of_tensors([part for part in parts.found if isinstance(part, torch.Tensor)]))
    state = hashlib.blake2b(digest_size=8)
    for part in parts.found:
        if isinstance(part, torch.Tensor):
            state.update(next(digests).to_bytes(8, "little"))
        elif isinstance(part, numpy.ndarray):
            state.update(repr((part.shape, str(part.dtype))).encode())
            state.update(part.tobytes())
        else:
            state.update(part)
    return state.hexdigest() + not_read_words(parts.not_read)


def of_parts(parts: Sequence[int]) -> str:
    """Return one digest, as hex, of those that `of_tensors` has returned."""
    joined = b"".join(part.to_bytes(8, "little") for part in parts)
    return hashlib.blake2b(joined, digest_size=8).hexdigest()


def of_readable(value: Any, leave_out: Callable[[torch.Tensor], bool] = lambda _: False) -> str:
    """Return `of_nested`, or what is raised where a value cannot be read: a script may go on."""
    try:
        return of_nested(value, leave_out)
    except Exception as error:
        # It is the same in each run.
        return f"{UNREAD}{type(error).__name__}"


def of_digests(digests: Sequence[str]) -> str:
    """Return the digest of a row of them, with what any of them says was not read."""
    return of_nested(list(digests)) + not_read_words(not_read_in(digests))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors that `of_nested` reads, up to what cannot be read."""
    parts = _Parts(lambda _: False)
    with contextlib.suppress(Exception):
        parts.add(value)
    return [part for part in parts.found if isinstance(part, torch.Tensor)]


class _Parts:
    """What a value consists of, in an order that follows from the value alone."""

    def __init__(self, leave_out: Callable[[torch.Tensor], bool]) -> None:
        self._leave_out = leave_out
        self.found: list[torch.Tensor | numpy.ndarray[Any, Any] | bytes] = []
        self.not_read: set[str] = set()
        """Kinds of objects that hold something which cannot be read."""
        self._inside: set[int] = set()
        """Identities of the objects around the one that is read: one may lead back to itself."""
        self._objects = 0

    def add(self, value: Any) -> None:
        """Take a value apart."""
        value = _opened(value)
        if isinstance(value, torch.Tensor) and self._leave_out(value):
            self.found.append(b"left out")
        elif isinstance(value, torch.Tensor | numpy.ndarray):
            self.found.append(value)
        elif isinstance(value, Mapping):
            for key in value:
                self.found.append(repr(key).encode())
                self.add(value[key])
        elif isinstance(value, list | tuple):
            self.found.append(f"{len(value)}[".encode())
            for item in value:
                self.add(item)
        elif is_dataclass(value) and not isinstance(value, type):
            self.add({item.name: getattr(value, item.name) for item in fields(value)})
        elif isinstance(value, _SHOWN_WHOLE):
            self.found.append(repr(value).encode())
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        self.found.append(kind.__qualname__.encode())
        attributes = _attributes_of(value)
        if isinstance(value, type):
            self.found.append(f"{value.__module__}.{value.__qualname__}".encode())
        elif isinstance(value, numpy.generic):
            self.found.append(str(value.dtype).encode() + value.tobytes())
        elif isinstance(value, weakref.ref) or id(value) in self._inside:
            # What it refers to is no content of its own, or is being read.
            return
        elif attributes is None or not self._add_attributes(value, attributes):
            self.not_read.add(f"{kind.__module__}.{kind.__qualname__}")

    def _add_attributes(self, value: Any, attributes: dict[str, Any]) -> bool:
        """Return whether the attributes of an object could be taken apart as well."""
        if self._objects >= _MOST_OBJECTS or len(self._inside) >= _DEEPEST:
            return False
        self._objects += 1
        self._inside.add(id(value))
        before = len(self.found)
        try:
            self.add(attributes)
            inside = self.found[before:]
            # A batch may lead to the whole data set.
            is_read = sum(x.nbytes for x in inside if not isinstance(x, bytes)) <= _MOST_BYTES
        except Exception:
            is_read = False
        finally:
            self._inside.discard(id(value))
        if not is_read:
            # The check says so.
            del self.found[before:]
        return is_read


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that holds nothing else, None of any other one."""
    held = getattr(value, "__dict__", None)
    # Slots, and what is written in C, make an object larger than a plain one.
    is_plain = type(value).__basicsize__ <= _Plain.__basicsize__ and not any(
        vars(kind).get("__slots__") for kind in type(value).__mro__
    )
    is_known = isinstance(held, dict) and not isinstance(value, torch.nn.Module)
    return held if is_known and is_plain else None


class _Plain:
    """All that an object of such a class holds is in its `__dict__`."""


def _opened(value: Any) -> Any:
    """Return a list for what has no bytes of its own: nested tensors, arrays of objects, sets."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return list(value.unbind())
    if isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.hasobject:
        # Its bytes are addresses, which differ in each run.
        return value.tolist()
    if isinstance(value, deque):
        return list(value)
    is_set = isinstance(value, set | frozenset)
    if is_set and all(isinstance(item, _SHOWN_WHOLE) for item in value):
        return sorted(map(repr, value))
    return value
