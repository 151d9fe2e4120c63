"""What objects consist of: their parts and bytes, and what autograd graphs hold."""

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy
import torch

from hotlap import compat
from hotlap.trace.saved_tensors import read_saved

_MOST_OBJECTS = 100_000
_MOST_NODES = 200_000
_NO_NUMBER = 2**63
"""Least number that stands for none."""
_MOST_PLACES = 2**20
"""Longer lists are not searched for places that hold nothing yet."""
_LINK = "_lru_list_elem"
"""Type of what the cache of `functools.lru_cache` holds if it has a length."""
LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    ModuleType,
    BuiltinFunctionType,
)
"""What leads to nothing."""
_CODE = (type, FunctionType, MethodType)


@dataclass
class Graph:
    """What an autograd graph holds."""

    nodes: int = 0
    tensors: list[torch.Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Of its nodes in the order in which a thread has made them; those of parameters have none."""


def graph_of(roots: list[torch.Tensor]) -> Graph:
    """Return the nodes of the graphs that lead to some tensors, and the tensors saved in them."""
    graph = Graph()
    stack = [tensor.grad_fn for tensor in roots]
    visited: set[Any] = set()
    is_numbered = compat.find_optional("Node._sequence_nr") is not None
    while stack and len(visited) < _MOST_NODES:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        graph.tensors += _saved_by(node)
        if is_numbered and (number := node._sequence_nr()) < _NO_NUMBER:
            graph.numbers.append(number)
        stack.extend(next_node for next_node, _ in node.next_functions)
    graph.nodes = len(visited)
    return graph


_names_of_saved: dict[type, tuple[str, ...]] = {}


def _saved_by(node: Any) -> list[torch.Tensor]:
    kind = type(node)
    if kind not in _names_of_saved:
        names = [name for name in dir(kind) if name.startswith("_saved_")]
        _names_of_saved[kind] = tuple(names or ["saved_tensors"] * hasattr(kind, "saved_tensors"))
    found: list[torch.Tensor] = []
    for name in _names_of_saved[kind]:
        try:
            found += read_saved(node, name)
        except RuntimeError:
            # A backward has been through it, and freed what it saved.
            continue
    return found


def count_filled(container: Any) -> int:
    """Return the elements of a container; of a list those that are not None.

    A list may be made with all its places, which are filled later.
    """
    count = len(container)
    if not isinstance(container, list) or count > _MOST_PLACES:
        return count
    return count - sum(item is None for item in container)


def newest_of(container: Any, count: int) -> list[Any]:
    """Return the newest elements of a container; of a set any, of a mapping the values."""
    if isinstance(container, list) and count_filled(container) < len(container):
        # Their order is not that in which they came.
        return [item for item in container if item is not None][-count:]
    return last_of(container, count)


def last_of(container: Any, count: int) -> list[Any]:
    """Return the last elements of a container; of a set any, of a mapping the values."""
    if isinstance(container, Mapping):
        return [container[key] for key in first_of(reversed(container), count)]
    if isinstance(container, set | frozenset):
        return first_of(iter(container), count)
    if hasattr(container, "__reversed__"):
        return first_of(reversed(container), count)
    # Views of a mapping.
    return first_of(reversed(list(container)), count)


def first_of(items: Iterator[Any], count: int) -> list[Any]:
    """Return the first elements that an iterator gives."""
    return [item for _, item in zip(range(count), items, strict=False)]


def slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Give the attributes of an object that lie in slots."""
    for kind in type(value).__mro__:
        if "__slots__" not in vars(kind):
            continue
        for name, slot in list(vars(kind).items()):
            # Read by its descriptor: no `__getattr__` of the user's runs.
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):
                    yield name, slot.__get__(value, kind)


def sizes_of(value: Any, on_tensor: Callable[[torch.Tensor], None]) -> int:
    """Return the bytes of the Python and numpy objects that a value consists of.

    Args:
        value: anything.
        on_tensor: called with each tensor, whose memory is not counted.
    """
    total, visited, stack = 0, set(), [value]
    while stack and len(visited) < _MOST_OBJECTS:
        each = stack.pop()
        if id(each) in visited or each is None or isinstance(each, bool | type | ModuleType):
            continue
        visited.add(id(each))
        if isinstance(each, torch.Tensor):
            on_tensor(each)
            continue
        total += sys.getsizeof(each)
        if isinstance(each, numpy.ndarray):
            # A view's own size leaves out what it is a view of.
            if each.base is not None:
                stack.append(each.base)
        elif not isinstance(each, (*LEAVES, *_CODE)):
            stack.extend(_all_parts(each))
    return total


def _all_parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | deque | set | frozenset):
        return list(value)
    if type(value).__name__ == _LINK:
        return gc.get_referents(value)
    attributes = getattr(value, "__dict__", None)
    slots = [part for _, part in slots_of(value)]
    return [attributes, *slots] if isinstance(attributes, dict) else slots
