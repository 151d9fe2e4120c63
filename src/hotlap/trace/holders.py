"""Which of the user's variables hold memory: containers, and tensors with their graphs."""

import functools
import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils.data import Dataset

from hotlap.trace import frames
from hotlap.trace.object_sizes import LEAVES, first_of, last_of, slots_of
from hotlap.usercode import is_hotlaps, is_users

_MOST_OBJECTS = 100_000
"""Objects that one walk looks at."""
_DEEPEST = 6
_ENDS = 8
"""Elements of a long container that are looked at, from each end."""
_CONTAINERS = (list, dict, set, deque, bytearray)
_CODE = (type, FunctionType, MethodType, staticmethod, classmethod)
_Cached = type(functools.cache(len))
"""What `functools.cache` and `functools.lru_cache` make of a function."""

Owner = tuple[str, str]
"""The function or class that a variable belongs to, as its file and qualified name."""


@dataclass(frozen=True)
class Held:
    """A container, or a tensor with a graph, that the user's variables lead to."""

    name: str
    file: str
    """The file whose variable it is found from."""
    value: Any
    owner: Owner | None = None
    """None for a variable of a module."""
    dataset: Any = None
    """The dataset that it is part of, the nearest one on the way to it."""
    cached: Any = None
    """The function of `functools.lru_cache` whose results it keeps."""


@dataclass(frozen=True)
class _Place:
    """An object on the way, and how it was reached."""

    name: str
    file: str
    value: Any
    depth: int = 0
    owner: Owner | None = None
    dataset: Any = None
    cached: Any = None

    def part(self, step: str, value: Any) -> "_Place":
        """Return what a container holds, or an attribute of an object."""
        kind = type(self.value)
        return _Place(
            f"{self.name}{step}",
            self.file,
            value,
            self.depth + 1,
            _owner_of(kind) or self.owner,
            self.value if is_dataset(self.value) else self.dataset,
        )

    def variable(self, name: str, value: Any, file: str, owner: Owner | None) -> "_Place":
        """Return a variable of code that was found here."""
        return _Place(name, file, value, self.depth + 1, owner, self.dataset)


def find_held(frame: FrameType | None, others: Iterable[tuple[str, str, Any]] = ()) -> list[Held]:
    """Return what the variables of the user's running functions and modules lead to.

    Each object is named once, by the shortest way to it; also what closures, default arguments and
    generators that have not ended hold.

    Args:
        frame: where the user's functions are looked for.
        others: (name, file, object) of what else is followed.
    """
    walk = _Walk()
    walk.follow([*_roots(frame), *(_Place(name, file, value) for name, file, value in others)])
    walk.follow(_hidden_roots())
    return walk.found


class _Walk:
    """Follows objects to their parts, the nearest first."""

    def __init__(self) -> None:
        self.found: list[Held] = []
        self._visited: set[int] = set()

    def follow(self, roots: Iterable[_Place]) -> None:
        queue = deque(roots)
        while queue and len(self._visited) < _MOST_OBJECTS:
            place = queue.popleft()
            value = place.value
            # Not isinstance: it asks proxies for their class, which may run code.
            if issubclass(type(value), LEAVES) or id(value) in self._visited:
                continue
            self._visited.add(id(value))
            is_tensor = issubclass(type(value), torch.Tensor)
            if issubclass(type(value), _CONTAINERS) or (is_tensor and value.grad_fn is not None):
                row = (place.owner, place.dataset, place.cached)
                self.found.append(Held(place.name, place.file, value, *row))
            if not is_tensor and place.depth < _DEEPEST:
                queue.extend(_parts_of(place))


def is_dataset(value: Any) -> bool:
    """True for a dataset with samples by index: torch's, or an object of the user's like it."""
    kind = type(value)
    if issubclass(kind, Dataset):
        return True
    if issubclass(kind, (*_CONTAINERS, tuple, torch.nn.Module)) or _owner_of(kind) is None:
        return False
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__")


def _owner_of(kind: type) -> Owner | None:
    """Return file and name of a class of the user's, None for a library's."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return (file, kind.__qualname__) if isinstance(file, str) and is_users(file) else None


def _roots(frame: FrameType | None) -> Iterator[_Place]:
    for each in frames.user_frames(frame):
        yield from _variables_of(each)
    for module in list(sys.modules.values()):
        names = module.__dict__ if isinstance(module, ModuleType) else {}
        file = names.get("__file__")
        if isinstance(file, str) and is_users(file):
            for name, value in list(names.items()):
                if not name.startswith("__"):
                    yield _Place(name, file, value)


def _variables_of(frame: FrameType) -> Iterator[_Place]:
    code = frame.f_code
    owner = None if code.co_name == "<module>" else _own(code)
    for name, value in frames.variables_of(frame):
        if name.isidentifier() and not name.startswith("__"):
            yield _Place(name, code.co_filename, value, owner=owner)


def _hidden_roots() -> Iterator[_Place]:
    """Give what only a `for` statement or a library may hold.

    That is the variables of generators that have not ended, and the user's datasets.
    """
    for each in gc.get_objects():
        kind = type(each)
        if kind is GeneratorType:
            if each.gi_frame is not None and is_users(each.gi_code.co_filename):
                yield from _variables_of(each.gi_frame)
        elif issubclass(kind, Dataset) and (owner := _owner_of(kind)) is not None:
            yield _Place(kind.__name__, owner[0], each)


def _parts_of(place: _Place) -> Iterator[_Place]:
    """Give what an object leads to."""
    value = place.value
    kind = type(value)
    if issubclass(kind, dict):
        for key, item in _both_ends(value.items()):
            yield place.part(f"[{key!r}]" if isinstance(key, str | int) else "[...]", item)
    elif issubclass(kind, list | tuple | deque | set | frozenset):
        for item in _both_ends(value):
            yield place.part("[...]", item)
    elif issubclass(kind, (*_CODE, functools.partial, _Cached)):
        yield from _parts_of_code(place)
    elif not is_hotlaps(getattr(sys.modules.get(kind.__module__), "__file__", None) or ""):
        attributes = getattr(value, "__dict__", None)
        for name, item in list(attributes.items()) if isinstance(attributes, dict) else ():
            yield place.part(f".{name}", item)
        for name, item in slots_of(value):
            yield place.part(f".{name}", item)
        if _owner_of(kind) is not None:
            yield place.variable(kind.__name__, kind, place.file, None)


def _parts_of_code(place: _Place) -> Iterator[_Place]:
    """Give what functions, methods and classes hold besides their text."""
    value = place.value
    if isinstance(value, MethodType):
        owner = value.__self__
        yield place.variable(type(owner).__name__, owner, place.file, None)
        yield replace(place, value=value.__func__)
    elif isinstance(value, staticmethod | classmethod):
        yield replace(place, value=value.__func__)
    elif isinstance(value, functools.partial):
        yield replace(place, value=value.func)
        code = getattr(value.func, "__code__", None)
        names = code.co_varnames if code is not None else ()
        file, owner = (code.co_filename, _own(code)) if code is not None else (place.file, None)
        for name, item in (*zip(names, value.args, strict=False), *value.keywords.items()):
            yield place.variable(name, item, file, owner)
    elif isinstance(value, _Cached):
        yield replace(place, value=value.__wrapped__)
        for each in gc.get_referents(value):
            if type(each) is dict and each is not vars(value):
                yield replace(place, value=each, depth=place.depth + 1, cached=value)
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(place, value)
    elif (owner := _owner_of(value)) is not None:
        for name, item in list(vars(value).items()):
            if not name.startswith("__") or isinstance(item, FunctionType):
                yield place.variable(f"{value.__name__}.{name}", item, owner[0], owner)


def _parts_of_function(place: _Place, function: FunctionType) -> Iterator[_Place]:
    """Give the variables that a function has taken along, and what a decorator's leads to."""
    code = function.__code__
    for name, item in list(function.__dict__.items()):
        step = "" if name == "__wrapped__" else f".{name}"
        yield replace(place, name=f"{place.name}{step}", value=item, depth=place.depth + 1)
    if not is_users(code.co_filename):
        return
    around = (code.co_filename, code.co_qualname.rpartition(".<locals>")[0])
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield place.variable(name, cell.cell_contents, code.co_filename, around)
        except ValueError:
            # It is not assigned yet.
            continue
    defaults = function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    named = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    for name, item in (*named, *(function.__kwdefaults__ or {}).items()):
        yield place.variable(name, item, code.co_filename, _own(code))


def _own(code: CodeType) -> Owner:
    return code.co_filename, code.co_qualname


def _both_ends(items: Any) -> list[Any]:
    if len(items) <= 2 * _ENDS:
        return list(items)
    return [*first_of(iter(items), _ENDS), *last_of(items, _ENDS)]


def users_files(frame: FrameType | None) -> list[str]:
    """Return the user's files that are running, then those that were imported."""
    running = [each.f_code.co_filename for each in frames.user_frames(frame)]
    modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    files = [each.__dict__.get("__file__") for each in modules]
    imported = [file for file in files if isinstance(file, str) and is_users(file)]
    return list(dict.fromkeys([*running, *imported]))
