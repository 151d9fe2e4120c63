"""Which of the user's variables hold memory: containers, and tensors with their graphs."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

from hotlap.trace import frames
from hotlap.usercode import is_hotlaps, is_users

_MOST_OBJECTS = 100_000
"""Objects that one walk looks at."""
_MOST_NODES = 200_000
_DEEPEST = 6
_ENDS = 8
"""Elements of a long container that are looked at, from each end."""
_LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    torch.dtype,
    torch.device,
)
_CONTAINERS = (list, dict, set, deque, bytearray)


@dataclass(frozen=True)
class Held:
    """A container, or a tensor with a graph, that the user's variables lead to."""

    name: str
    file: str
    """The file whose variable it is found from."""
    value: Any


@dataclass
class Graph:
    """What an autograd graph holds."""

    nodes: int = 0
    tensors: list[torch.Tensor] = field(default_factory=list)


def find_held(frame: FrameType | None, others: Iterable[tuple[str, str, Any]] = ()) -> list[Held]:
    """Return what the variables of the user's running functions and modules lead to.

    Each object is named once, by the shortest way to it.

    Args:
        frame: where the user's functions are looked for.
        others: (name, file, object) of what else is followed.
    """
    found: list[Held] = []
    visited: set[int] = set()
    queue: deque[tuple[str, str, Any, int]] = deque(
        (*_roots(frame), *((name, file, value, 0) for name, file, value in others))
    )
    while queue and len(visited) < _MOST_OBJECTS:
        name, file, value, depth = queue.popleft()
        if isinstance(value, _LEAVES) or id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.grad_fn is not None:
                found.append(Held(name, file, value))
            continue
        if isinstance(value, _CONTAINERS):
            found.append(Held(name, file, value))
        if depth < _DEEPEST:
            queue.extend(
                (f"{name}{step}", file, part, depth + 1) for step, part in _parts_of(value)
            )
    return found


def _roots(frame: FrameType | None) -> Iterator[tuple[str, str, Any, int]]:
    for each in frames.user_frames(frame):
        for name, value in list(each.f_locals.items()):
            if not name.startswith("__"):
                yield name, each.f_code.co_filename, value, 0
    for module in list(sys.modules.values()):
        names = module.__dict__ if isinstance(module, ModuleType) else {}
        file = names.get("__file__")
        if isinstance(file, str) and is_users(file):
            for name, value in list(names.items()):
                if not name.startswith("__"):
                    yield name, file, value, 0


def users_files(frame: FrameType | None) -> list[str]:
    """Return the user's files that are running, then those that were imported."""
    running = [each.f_code.co_filename for each in frames.user_frames(frame)]
    modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    files = [each.__dict__.get("__file__") for each in modules]
    imported = [file for file in files if isinstance(file, str) and is_users(file)]
    return list(dict.fromkeys([*running, *imported]))


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Give what an object leads to, and how the way goes on in its name."""
    if isinstance(value, dict):
        for key, item in _both_ends(value.items()):
            yield f"[{key!r}]" if isinstance(key, str | int) else "[...]", item
    elif isinstance(value, list | tuple | deque | set | frozenset):
        for item in _both_ends(value):
            yield "[...]", item
    elif isinstance(attributes := getattr(value, "__dict__", None), dict):
        if is_hotlaps(getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""):
            return
        for name, item in list(attributes.items()):
            yield f".{name}", item


def _both_ends(items: Any) -> list[Any]:
    if len(items) <= 2 * _ENDS:
        return list(items)
    return [*_take(iter(items), _ENDS), *last_of(items, _ENDS)]


def _take(items: Iterator[Any], count: int) -> list[Any]:
    return [item for _, item in zip(range(count), items, strict=False)]


def last_of(container: Any, count: int) -> list[Any]:
    """Return the newest elements of a container; of a set any, of a mapping the values."""
    if isinstance(container, Mapping):
        return [container[key] for key in _take(reversed(container), count)]
    if isinstance(container, set | frozenset):
        return _take(iter(container), count)
    if hasattr(container, "__reversed__"):
        return _take(reversed(container), count)
    # Views of a mapping.
    return _take(reversed(list(container)), count)


def graph_of(roots: list[torch.Tensor]) -> Graph:
    """Return the nodes of the graphs that lead to some tensors, and the tensors saved in them."""
    graph = Graph()
    stack = [tensor.grad_fn for tensor in roots]
    visited: set[Any] = set()
    while stack and len(visited) < _MOST_NODES:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        graph.tensors += _saved_by(node)
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
            saved = getattr(node, name)
        except RuntimeError:
            # A backward has been through it, and freed what it saved.
            continue
        parts = saved if isinstance(saved, list | tuple) else [saved]
        found += [part for part in parts if isinstance(part, torch.Tensor)]
    return found


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
        elif not isinstance(each, _LEAVES):
            stack.extend(_all_parts(each))
    return total


def _all_parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | deque | set | frozenset):
        return list(value)
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) else []
