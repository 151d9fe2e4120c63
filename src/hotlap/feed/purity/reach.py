"""Everything that reading a sample of a data set can depend on, as far as its code reaches.

Walked are the data set, data sets and transforms inside it, and what the code of their methods
names: attributes, closures, globals, classes and modules of the user's own. From that follow what
makes a data set unfit to be kept in memory, what changed since the last look, and a quick look that
can be taken before every batch.
"""

import dis
import logging
import marshal
import operator
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from itertools import islice
from pathlib import PurePath
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from hotlap.feed.purity.sums import sum_of_array, sum_of_tensor
from hotlap.usercode import is_users

_MOST_OBJECTS = 20_000
_PLAIN = (str, bytes, int, float, complex, type(None))
_READING = ("__getitem__", "__getitems__", "__call__", "forward")
_PRINTING = frozenset({"print", "stdout", "stderr", "pprint"})
_WRITING = frozenset({"write", "writelines", "write_text", "write_bytes"})
_MOST_WATCHED, _MOST_WATCHED_BYTES = 32, 4096
"""Small containers that are compared before every batch, and how large one may be."""


class Reach:
    """What was reached, at one moment.

    Args:
        dataset: the data set; it is not kept.
    """

    def __init__(self, dataset: Any) -> None:
        self.problem: str | None = None
        """Why samples may not be kept in memory, or read once more to see."""
        self.marks: dict[str, Any] = {}
        """Path -> a value, or what stands for the contents."""
        self._queue: deque[tuple[str, Any]] = deque([(type(dataset).__name__, dataset)])
        self._seen: dict[int, Any] = {id(dataset): None}
        self._watched: list[tuple[Mapping[str, Any], str, Any]] = []
        self._paths: list[str] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []
        # An attribute of the class may be hidden by one that an object gets later.
        self._holders: list[tuple[Mapping[str, Any], int]] = []
        self._contents: list[tuple[str, Any, Any]] = []
        """(path, small container of plain values, a copy of it)"""
        self._members: list[tuple[str, Any, list[Any]]] = []
        """(path, small container of other objects, these)"""
        self._slots: list[tuple[str, Any, str, Any]] = []
        while self._queue and self.problem is None:
            path, value = self._queue.popleft()
            self.marks[path] = self._look(path, value)
            if len(self._seen) > _MOST_OBJECTS:
                self.problem = f"it holds more than {_MOST_OBJECTS} objects to look over"
        self._has_contents = bool(self._contents or self._members or self._slots)
        # The data set itself must not be held: it lives as long as the script wants.
        del self._seen, self._queue

    def changed(self) -> str | None:
        """Return the path of something that was rebound, or written to, since; None if nothing.

        This is the quick look: of contents those of tensors and of small containers are seen.
        """
        found = self.rebound()
        if found is None and self._has_contents:
            return self._rewritten()
        return found

    def rebound(self) -> str | None:
        """Like `changed`, but leave containers out, in which a data set may keep what it read."""
        for number, (holder, name, value) in enumerate(self._watched):
            if holder.get(name) is not value:
                return self._paths[number]
        for holder, size in self._holders:
            if len(holder) != size:
                return "an attribute that was not there before, or is gone,"
        for tensor, version in self._tensors:
            if tensor._version != version:
                return "a tensor"
        return None

    def _rewritten(self) -> str | None:
        for path, container, copy in self._contents:
            if container != copy:
                return path
        for path, container, members in self._members:
            now = _members_of(container)
            if len(now) != len(members) or not all(map(operator.is_, now, members)):
                return path
        for path, holder, name, value in self._slots:
            if getattr(holder, name, None) is not value:
                return path
        return None

    def accept(self) -> None:
        """Take small containers as they are now: reading has filled them."""
        contents, self._contents = self._contents, []
        for path, container, _ in contents:
            self._watch_contents(path, container)
        self._members = [(path, each, _members_of(each)) for path, each, _ in self._members]
        self._slots = [
            (path, holder, name, getattr(holder, name, None))
            for path, holder, name, _ in self._slots
        ]

    def _add(self, path: str, value: Any) -> None:
        if id(value) in self._seen or isinstance(value, _PLAIN):
            self.marks[path] = value if isinstance(value, _PLAIN) else id(value)
            return
        # Kept until the walk ends: an address must not be given to another object meanwhile.
        self._seen[id(value)] = value
        self._queue.append((path, value))

    def _watch(self, path: str, holder: Mapping[str, Any], name: str) -> None:
        value = holder[name]
        self._watched.append((holder, name, value))
        self._paths.append(path)
        self._add(path, value)

    def _look(self, path: str, value: Any) -> Any:
        """Queue what hangs on a value, and return what stands for the value itself."""
        if isinstance(value, torch.Tensor):
            self._tensors.append((value, value._version))
            return id(value), value._version, sum_of_tensor(value)
        if _is_generator(value):
            self.problem = f"the data set reaches a random generator or an iterator ({path})"
        elif isinstance(value, logging.Logger):
            self.problem = f"reading a sample may log ({path})"
        elif isinstance(value, FunctionType):
            self._look_at_code(path, value.__code__, value)
        elif isinstance(value, MethodType):
            self._add(path, value.__func__)
            self._add(f"{path}.__self__", value.__self__)
        elif isinstance(value, BuiltinMethodType):
            if not isinstance(value.__self__, ModuleType):
                self._add(f"{path}.__self__", value.__self__)
        elif isinstance(value, partial):
            for number, part in enumerate([value.func, *value.args, *value.keywords.values()]):
                self._add(f"{path}({number})", part)
        elif isinstance(value, type):
            self._look_at_class(path, value)
        elif isinstance(value, ModuleType):
            return id(value)
        else:
            return self._look_at_contents(path, value)
        return id(value)

    def _look_at_contents(self, path: str, value: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            return id(value), value.shape, sum_of_array(numpy, value)
        if isinstance(value, list | tuple | dict | set | frozenset | bytearray | deque):
            digest = _digest(value)
            if digest is not None:
                self._watch_contents(path, value)
                return digest
            if len(value) <= _MOST_WATCHED and len(self._members) < _MOST_WATCHED:
                self._members.append((path, value, _members_of(value)))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                self._add(f"{path}[{key!r:.80}]", item)
            return id(value), len(value)
        if type(value).__module__.partition(".")[0] == "pandas":
            return hash(pickle.dumps(value, protocol=5))
        self._look_at_object(path, value)
        return id(value)

    def _watch_contents(self, path: str, value: Any) -> None:
        """Let the quick look see a small container's contents, as configurations are."""
        if isinstance(value, tuple | frozenset) or len(self._contents) >= _MOST_WATCHED:
            return
        if sys.getsizeof(value) > _MOST_WATCHED_BYTES:
            return
        try:
            written = marshal.dumps(list(value) if isinstance(value, deque) else value, 2)
        except ValueError:
            # Paths, which never change, among them.
            return
        copy = marshal.loads(written) if len(written) <= _MOST_WATCHED_BYTES else None
        copy = deque(copy) if isinstance(value, deque) and copy is not None else copy
        # What is not a number equals nothing, itself neither.
        if type(copy) is type(value) and copy == value:
            self._contents.append((path, value, copy))

    def _look_at_object(self, path: str, value: Any) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._holders.append((attributes, len(attributes)))
            for name in attributes:
                self._watch(f"{path}.{name}", attributes, name)
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(value, name):
                    held = getattr(value, name)
                    self._add(f"{path}.{name}", held)
                    if len(self._slots) < _MOST_WATCHED:
                        self._slots.append((f"{path}.{name}", value, name, held))
        for kind in type(value).__mro__:
            if _is_own_class(kind):
                self._add(f"{path}.{kind.__name__}", kind)
        for name, method in _methods_reached(type(value)).items():
            self._add(f"{path}.{name}", method)

    def _look_at_class(self, path: str, kind: type) -> None:
        if not _is_own_class(kind):
            return
        attributes = vars(kind)
        for name, value in attributes.items():
            if not (name.startswith("__") or isinstance(value, _DESCRIPTORS)):
                self._watch(f"{path}.{name}", attributes, name)

    def _look_at_code(self, path: str, code: CodeType, function: FunctionType) -> None:
        """Queue what a function of the user's can reach; a library's own functions are trusted."""
        if not _is_own_code(code):
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._add(f"{path}.{name}", cell.cell_contents)
            except ValueError:
                continue
        for value in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            self._add(f"{path}()", value)
        names = _names(code)
        if names & _PRINTING:
            self.problem = f"reading a sample prints ({path})"
            return
        if names & _WRITING:
            self.problem = f"reading a sample may write to a file ({path})"
            return
        known = function.__globals__
        for name in sorted(_globals_used(code) & known.keys()):
            value = known[name]
            if isinstance(value, ModuleType):
                self._look_at_module(f"{path}.{name}", value, names)
            else:
                self._watch(f"{path}.{name}", known, name)

    def _look_at_module(self, path: str, module: ModuleType, names: set[str]) -> None:
        if module is logging or module.__name__ == "warnings":
            self.problem = f"reading a sample may log ({path})"
        elif _is_own_module(module):
            for name in sorted(names & vars(module).keys()):
                self._watch(f"{path}.{name}", vars(module), name)


_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_DESCRIPTORS = (FunctionType, classmethod, staticmethod, property)


def _is_generator(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    kinds: list[type] = [random.Random, torch.Generator, Iterator]
    # Of these the states are looked at around every read.
    known: list[Any] = [getattr(random.random, "__self__", None), torch.default_generator]
    if numpy is not None and "numpy.random" in sys.modules:
        kinds += [numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator]
        known.append(numpy.random.random.__self__)
    return isinstance(value, tuple(kinds)) and not any(value is each for each in known)


def _is_own_code(code: CodeType) -> bool:
    name = code.co_filename
    # What was typed, or made from text, has no file; Python's own frozen modules have none either.
    return is_users(name) or (name.startswith("<") and not name.startswith("<frozen"))


def _is_own_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or (module is not None and _is_own_module(module))


def _is_own_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is not None:
        return is_users(file)
    # Made by hand, as configurations are; a module of C without a file has a loader.
    return module.__spec__ is None and module.__name__ not in sys.builtin_module_names


@lru_cache(maxsize=1024)
def _globals_used(code: CodeType) -> frozenset[str]:
    """Return the global names that code reads; an attribute of the same name is another thing."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _globals_used(constant)
    return frozenset(found)


def _names(code: CodeType) -> set[str]:
    """Return the names that code uses, functions inside it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _methods_reached(kind: type) -> dict[str, FunctionType]:
    """Return the methods that read, of the user's own classes, and those that they name."""
    found: dict[str, FunctionType] = {}
    names = set(_READING)
    while names:
        name = names.pop()
        for owner in kind.__mro__:
            raw = vars(owner).get(name)
            method = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
            key = f"{owner.__name__}.{name}"
            if key in found or not isinstance(method, FunctionType):
                continue
            if _is_own_code(method.__code__):
                found[key] = method
                names |= _names(method.__code__)
    return found


def _members_of(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def _digest(value: Any) -> int | None:
    """Return a digest of plain nested containers, None if something else is in them."""
    if _holds_arrays(value):
        return None
    plain = list(value) if isinstance(value, deque) else value
    try:
        if _holds(PurePath, value):
            plain = _with_paths_as_words(plain)
        # Version 2 writes contents only; later ones also how often an object is referred to.
        return hash(marshal.dumps(plain, 2))
    except (ValueError, RecursionError):
        return None


def _with_paths_as_words(value: Any) -> Any:
    """Return nested lists, tuples and dictionaries in which paths, which never change, are text."""
    if isinstance(value, PurePath):
        return type(value).__name__, str(value)
    if type(value) in (list, tuple):
        return type(value)([_with_paths_as_words(item) for item in value])
    if type(value) is dict:
        return {_with_paths_as_words(k): _with_paths_as_words(v) for k, v in value.items()}
    return value


def _holds_arrays(value: Any) -> bool:
    """True if arrays lie in a container, as far as its first items show: they are not copied."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and _holds(numpy.ndarray, value)


def _holds(kind: type, value: Any, depth: int = 3) -> bool:
    if isinstance(value, kind):
        return True
    if depth == 0 or not isinstance(value, list | tuple | dict | set | frozenset | deque):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds(kind, item, depth - 1) for item in islice(items, 4))
