"""Is a sample the same however often, and in whatever state of the process, it is read?

A data set may only be kept in memory if it is. What is looked at: the global random states of
Python, numpy and torch around every first read, generators that the data set owns, attributes that
change between epochs, and samples read again under other global states.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

_OTHER_SEED = 0x5EED
_MAX_WALK = 2000
_MAX_SUM = 256 * 2**20
"""Bytes of an array that are looked at for changes in place."""


def global_random_states() -> tuple[Any, Any, torch.Tensor]:
    """Return the states of Python's, numpy's (if loaded) and torch's global generators."""
    numpy = sys.modules.get("numpy")
    numpy_state = None
    if numpy is not None and "numpy.random" in sys.modules:
        numpy_state = numpy.random.get_state(legacy=False)
    return random.getstate(), numpy_state, torch.get_rng_state()


def moved(before: tuple[Any, Any, torch.Tensor]) -> str | None:
    """Name the global generator that has been drawn from since `before`, or return None."""
    python_state, numpy_state, torch_state = global_random_states()
    if python_state != before[0]:
        return "Python's random"
    if numpy_state is not None and before[1] is not None:
        old, new = before[1]["state"], numpy_state["state"]
        if old["pos"] != new["pos"] or not (old["key"] == new["key"]).all():
            return "numpy.random"
    if not torch.equal(torch_state, before[2]):
        return "torch's random"
    return None


def restore(states: tuple[Any, Any, torch.Tensor]) -> None:
    """Put the global generators back into `states`."""
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])
    torch.set_rng_state(states[2])


@contextmanager
def other_random_states() -> Iterator[None]:
    """Run a block under other global random states, and put the old ones back."""
    states = global_random_states()
    random.seed(_OTHER_SEED)
    if states[1] is not None:
        sys.modules["numpy"].random.seed(_OTHER_SEED)
    torch.default_generator.manual_seed(_OTHER_SEED)
    try:
        yield
    finally:
        restore(states)


def own_generator(dataset: Any) -> str | None:
    """Return the attribute path of a random generator that the data set owns, or None."""
    kinds: list[type] = [random.Random, torch.Generator]
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        kinds += [numpy.random.Generator, numpy.random.RandomState]
    for path, value in _walk(dataset):
        # Reading a sample once more would draw from it, or move it on, for good.
        if isinstance(value, (*kinds, Iterator)):
            return path
    return None


def _walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, object) of what hangs on an object, breadth first, arrays and code left out."""
    name = type(root).__name__
    queue: list[tuple[str, Any]] = [(name, root)]
    # What the class does with a sample may be spread over methods.
    for method in _methods_reached(type(root)):
        queue.append((f"{name}.{method.__name__}", method))
    seen: set[int] = set()
    while queue and len(seen) < _MAX_WALK:
        path, value = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if isinstance(value, (str, bytes, int, float, torch.Tensor, ModuleType, type)):
            continue
        if isinstance(value, FunctionType | MethodType | partial):
            queue.extend(_reached_by(path, value))
            continue
        queue.extend(_children(path, value))


def _methods_reached(kind: type) -> list[FunctionType]:
    """Return `__getitem__`, `__getitems__` and the methods of the class that these name."""
    found: dict[str, FunctionType] = {}
    names = ["__getitem__", "__getitems__"]
    while names:
        name = names.pop()
        method = getattr(kind, name, None)
        if name not in found and isinstance(method, FunctionType):
            found[name] = method
            names.extend(method.__code__.co_names)
    return list(found.values())


def _reached_by(path: str, function: Any) -> list[tuple[str, Any]]:
    """Return what a function of the user's can reach: its owner, arguments, closure, globals."""
    if isinstance(function, partial):
        parts = [function.func, *function.args, *function.keywords.values()]
        return [(f"{path}()", part) for part in parts]
    if isinstance(function, MethodType):
        return [(path, function.__func__), (f"{path}.__self__", function.__self__)]
    code = function.__code__
    found = [(f"{path}.{n}", c) for n, c in zip(code.co_freevars, _cells(function), strict=True)]
    found += [(f"{path}()", value) for value in function.__defaults__ or ()]
    known = function.__globals__
    return found + [(f"{path}.{n}", known[n]) for n in code.co_names if n in known]


def _cells(function: FunctionType) -> list[Any]:
    return [_content(cell) for cell in function.__closure__ or ()]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    # A list of a million file names cannot hold many generators: the first few show the pattern.
    if isinstance(value, list | tuple):
        return [(f"{path}[{i}]", item) for i, item in enumerate(value[:32])]
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", item) for key, item in list(value.items())[:64]]
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return [(f"{path}.{name}", item) for name, item in found.items()]


def fingerprint(dataset: Any) -> dict[str, Any]:
    """Return what the data set can reach: values of scalars, marks of arrays, else identities.

    Two equal fingerprints mean that nobody rebound an attribute (`set_epoch`, another transform, a
    transform's own settings) or wrote into an array.
    """
    return {path: _mark(value) for path, value in _walk(dataset)}


def _mark(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | int | float | bool | complex):
        return value
    # Tensors count the changes made to them in place.
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, list | tuple):
        return id(value), len(value), [v._version for v in value if isinstance(v, torch.Tensor)]
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray:
        return id(value), value.shape, _sum_of_words(numpy, value)
    return id(value), len(value) if isinstance(value, dict | set) else 0


def _sum_of_words(numpy: Any, array: Any) -> int:
    """Return a sum that nearly every change in place moves; memory is read at its full speed."""
    if not array.flags.c_contiguous or array.dtype.hasobject or array.size == 0:
        return 0
    # A mapped file would be read from the disk, all of it, for every epoch.
    if array.base is not None and not isinstance(array.base, (numpy.ndarray, bytes)):
        return 0
    octets = array.reshape(-1).view(numpy.uint8)[:_MAX_SUM]
    words = octets[: len(octets) // 8 * 8].view(numpy.uint64)
    return int(words.sum(dtype=numpy.uint64)) + int(octets[len(words) * 8 :].sum())


def printing(dataset: Any) -> str | None:
    """Name a function of the data set's own module that prints when a sample is read, or None."""
    own = {type(dataset).__module__, "__main__"}
    for path, value in _walk(dataset):
        call = vars(type(value)).get("__call__")
        function = value if isinstance(value, FunctionType) else call
        if (
            isinstance(function, FunctionType)
            and function.__module__ in own
            and "print" in function.__code__.co_names
        ):
            return path
    return None


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare two tensors bit by bit (NaN equals itself), dtype and shape included."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_as_bytes(left), _as_bytes(right))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
