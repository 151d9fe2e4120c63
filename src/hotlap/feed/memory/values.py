"""Values that a data set gives: copied, compared bit by bit, and measured."""

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from hotlap.feed.purity.same_bytes import same_bytes

_CONSTANT = (bool, int, float, complex, str, bytes, type(None))
_TENSOR_BYTES = 400
"""Of a tensor's own record and its storage's, beside its numbers."""
_SHARED = "two parts of a sample share memory. Return copies from `__getitem__` to use resident"


class Unfit(Exception):
    """A sample holds something of which a copy may behave in another way."""


def copy_of(sample: Any) -> Any:
    """Return a sample like it, whose parts can be written to.

    Raises:
        Unfit: it holds something of which a copy may behave in another way.
    """
    kind = type(sample)
    if kind in _CONSTANT:
        return sample
    if kind is torch.Tensor:
        if (
            sample.requires_grad
            or sample.layout is not torch.strided
            or sample.device.type != "cpu"
        ):
            raise Unfit(
                "a sample holds a tensor that is sparse, on a device, or requires a gradient. "
                "Return dense tensors of the host from `__getitem__` to use resident"
            )
        return sample.clone()
    if kind is tuple or kind is list:
        return kind([copy_of(part) for part in sample])
    if kind is dict:
        return {key: copy_of(part) for key, part in sample.items()}
    if _is_named(sample):
        # Its own `__new__` has made these parts of what it was given, and would do so again.
        return tuple.__new__(kind, [copy_of(part) for part in sample])
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and not sample.dtype.hasobject:
        return sample.copy(order="K")
    if numpy is not None and isinstance(sample, numpy.generic) and not sample.dtype.hasobject:
        return sample
    if _is_picture(sample):
        return sample.copy()
    raise Unfit(
        f"a sample holds an object of class {kind.__name__}. Return tensors, arrays, numbers or "
        "text from `__getitem__` to use resident"
    )


def _is_named(sample: Any) -> bool:
    is_named = isinstance(sample, tuple) and hasattr(sample, "_fields")
    return is_named and not getattr(sample, "__dict__", None)


def _is_picture(sample: Any) -> bool:
    """True for an image of Pillow that is in memory, whole."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and type(sample) is pillow.Image


def are_same(held: Any, other: Any) -> bool:
    """Compare two samples bit by bit."""
    kind = type(held)
    if kind is not type(other):
        return False
    if kind is torch.Tensor:
        return held.stride() == other.stride() and same_bytes(held, other)
    if isinstance(held, tuple | list):
        return len(held) == len(other) and all(map(are_same, held, other))
    if kind is dict:
        same_keys = list(held) == list(other)
        return same_keys and all(are_same(part, other[key]) for key, part in held.items())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(held, numpy.ndarray | numpy.generic):
        same_form = held.dtype == other.dtype and held.shape == other.shape
        return same_form and held.tobytes() == other.tobytes()
    if _is_picture(held):
        if (held.mode, held.size, held.info) != (other.mode, other.size, other.info):
            return False
        palettes = [each and each.getdata() for each in (held.palette, other.palette)]
        return palettes[0] == palettes[1] and held.tobytes() == other.tobytes()
    # What is not a number equals nothing, itself neither.
    return repr(held) == repr(other) if isinstance(held, float | complex) else held == other


def size_of(sample: Any) -> int:
    """Return about how many bytes a sample takes."""
    size = sys.getsizeof(sample)
    if isinstance(sample, torch.Tensor):
        return size + sample.nbytes + _TENSOR_BYTES
    if isinstance(sample, tuple | list):
        return size + sum(map(size_of, sample))
    if isinstance(sample, dict):
        return size + sum(map(size_of, sample.values()))
    if _is_picture(sample):
        # Pillow keeps each pixel of several bands in four bytes.
        return size + sample.width * sample.height * (1 if len(sample.getbands()) == 1 else 4)
    return size


def check_apart(sample: Any) -> None:
    """Raise Unfit if a sample's parts hang together, or hold more, in ways that a copy's do not.

    Writing into one part of it must not change another. Views of one memory that do not overlap,
    such as the columns of a table's row, are apart.
    """
    objects: set[int] = set()
    spans: list[tuple[int, int]] = []
    for part in _written_to(sample):
        if isinstance(part, torch.Tensor) and vars(part):
            raise Unfit(
                f"a sample holds a tensor with the attribute '{next(iter(vars(part)))}'. Return it "
                "beside the tensor from `__getitem__` to use resident"
            )
        span = _span_of(part)
        if span is not None:
            spans += [span] if span[0] < span[1] else []
        elif id(part) in objects:
            raise Unfit(_SHARED)
        objects.add(id(part))
    spans.sort()
    if any(begin < end for (_, end), (begin, _) in itertools.pairwise(spans)):
        raise Unfit(_SHARED)


def _written_to(sample: Any) -> Iterator[Any]:
    """Give the parts of a sample that can be written to, containers included."""
    numpy = sys.modules.get("numpy")
    fixed = (tuple, *_CONSTANT, *([numpy.generic] if numpy is not None else []))
    if not isinstance(sample, fixed):
        yield sample
    if isinstance(sample, list | tuple | dict):
        for part in sample.values() if isinstance(sample, dict) else sample:
            yield from _written_to(part)


def _span_of(part: Any) -> tuple[int, int] | None:
    """Return where the memory of a tensor or an array begins and ends; None for anything else."""
    if isinstance(part, torch.Tensor):
        begin, size = part.data_ptr(), part.element_size()
        steps = [s * size for s in part.stride()]
    elif hasattr(part, "__array_interface__") and hasattr(part, "strides"):
        begin, size = part.__array_interface__["data"][0], part.itemsize
        steps = list(part.strides)
    else:
        return None
    if 0 in part.shape:
        return begin, begin
    reach = [step * (count - 1) for step, count in zip(steps, part.shape, strict=True)]
    low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
    return begin + low, begin + high + size
