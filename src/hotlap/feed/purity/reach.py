"""Walks everything that reading a sample can depend on, through code and attributes.

Walked are the data set, data sets and transforms inside it, and what the code of their methods
names: attributes, closures, globals, classes and modules of the user's own. From that follow what
makes a data set unfit to be kept in memory, what changed since the last look, and what a quick look
before every batch watches. A method is reached if any of that code uses its name, whatever of.
"""

import logging
import pickle
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from hotlap.feed.purity.change_watch import ChangeWatch
from hotlap.feed.purity.contents import digest_of
from hotlap.feed.purity.own_code import (
    READING,
    function_of,
    globals_used,
    is_own_class,
    is_own_code,
    is_own_module,
    names_imported,
    names_in,
)
from hotlap.feed.purity.sums import sum_of_array, sum_of_tensor
from hotlap.rng import is_own_generator

log = logging.getLogger("hotlap")

_MOST_OBJECTS = 20_000
_PLAIN = (str, bytes, int, float, complex, type(None))
_PRINTING = frozenset({"print", "stdout", "stderr", "pprint"})
_ENTERED = ("__enter__", "__exit__", "__iter__", "__getattr__")
_MADE = ("__new__", "__init__", "__post_init__")
_WRITING = frozenset({"write", "writelines", "write_text", "write_bytes"})


class Reach:
    """What was reached, at one moment.

    Args:
        dataset: the data set; it is not kept.
    """

    def __init__(self, dataset: Any) -> None:
        self.problem: str | None = None
        """Why samples may not be kept in memory, or read once more to see."""
        self.has_generator = False
        """True if that problem is a random generator of the data set's own."""
        self.marks: dict[str, Any] = {}
        """Path -> a value, or what stands for the contents."""
        self.watched = ChangeWatch()
        """What a quick look sees change."""
        self.names: set[str] = set()
        """What the user's own code that was reached names: globals, attributes and methods."""
        self._kinds: dict[type, str] = {}
        self._held: set[type] = set()
        """Classes of objects that were reached: these need not be made to read a sample."""
        self._modules: dict[str, tuple[str, ModuleType]] = {}
        self._followed: set[tuple[str, str]] = set()
        self._queue: deque[tuple[str, Any]] = deque([(type(dataset).__name__, dataset)])
        self._seen: dict[int, Any] = {id(dataset): None}
        while self.problem is None and (self._queue or self._follow_names()):
            path, value = self._queue.popleft()
            self.marks[path] = self._look(path, value)
            if len(self._seen) > _MOST_OBJECTS:
                self.problem = (
                    f"the dataset refers to more than {_MOST_OBJECTS} objects, too many to check"
                )
        # The data set itself must not be held: it lives as long as the script wants.
        del self._seen, self._queue, self._kinds, self._held, self._modules, self._followed

    def _add(self, path: str, value: Any) -> None:
        if id(value) in self._seen or isinstance(value, _PLAIN):
            self.marks[path] = value if isinstance(value, _PLAIN) else id(value)
            return
        # Kept until the walk ends: an address must not be given to another object meanwhile.
        self._seen[id(value)] = value
        self._queue.append((path, value))

    def _watch(self, path: str, holder: Mapping[str, Any], name: str) -> None:
        value = holder[name]
        self.watched.add_name(path, holder, name, value)
        self._add(path, value)

    def _look(self, path: str, value: Any) -> Any:
        """Queue what hangs on a value, and return what stands for the value itself."""
        if isinstance(value, torch.Tensor):
            self.watched.add_tensor(value)
            # A tensor that was made in inference mode counts no versions.
            version = 0 if value.is_inference() else value._version
            return id(value), version, sum_of_tensor(value)
        if isinstance(value, Iterator) or is_own_generator(value):
            self.has_generator = is_own_generator(value)
            self.problem = f"the dataset uses a random generator or an iterator ({path})"
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
            self._look_at_module(path, value)
        else:
            return self._look_at_contents(path, value)
        return id(value)

    def _look_at_contents(self, path: str, value: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            return id(value), value.shape, sum_of_array(numpy, value)
        if isinstance(value, list | tuple | dict | set | frozenset | bytearray | deque):
            digest = digest_of(value)
            if digest is not None:
                self.watched.add_contents(path, value)
                return digest
            self.watched.add_members(path, value)
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                self._add(f"{path}[{key!r:.80}]", item)
            return id(value), len(value)
        if type(value).__module__.partition(".")[0] == "pandas":
            return hash(pickle.dumps(value, protocol=5))
        self._look_at_object(path, value)
        return id(value)

    def _look_at_object(self, path: str, value: Any) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.watched.add_holder(attributes)
            for name in attributes:
                self._watch(f"{path}.{name}", attributes, name)
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(value, name):
                    held = getattr(value, name)
                    self._add(f"{path}.{name}", held)
                    self.watched.add_slot(f"{path}.{name}", value, name, held)
        for kind in type(value).__mro__:
            self._held.add(kind)
            # A class of a module that was loaded and not registered is the user's as well.
            self._kinds.setdefault(kind, f"{path}.{kind.__name__}")
            if is_own_class(kind):
                self._add(f"{path}.{kind.__name__}", kind)

    def _look_at_class(self, path: str, kind: type) -> None:
        if not is_own_class(kind):
            return
        self._kinds.setdefault(kind, path)
        for base in kind.__mro__[1:]:
            if is_own_class(base):
                self._add(f"{path}.{base.__name__}", base)
        attributes = vars(kind)
        for name, value in attributes.items():
            if not (name.startswith("__") or isinstance(value, _DESCRIPTORS)):
                self._watch(f"{path}.{name}", attributes, name)

    def _look_at_code(self, path: str, code: CodeType, function: FunctionType) -> None:
        """Queue what a function of the user's can reach; a library's own functions are trusted."""
        if not is_own_code(code):
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._add(f"{path}.{name}", cell.cell_contents)
            except ValueError:
                continue
        for value in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            self._add(f"{path}()", value)
        names = names_in(code)
        if names & _PRINTING:
            self.problem = f"reading a sample prints ({path})"
            return
        if names & _WRITING:
            self.problem = f"reading a sample may write to a file ({path})"
            return
        # A constructor that calls its base's does not call those of objects that are there.
        self.names |= names - {*_MADE}
        known = function.__globals__
        for name in names_imported(code):
            for each in (name, f"{known.get('__package__')}.{name}"):
                if each in sys.modules:
                    self._look_at_module(f"{path}.{name}", sys.modules[each])
        for name in sorted(globals_used(code) & known.keys()):
            if isinstance(known[name], ModuleType):
                self._look_at_module(f"{path}.{name}", known[name])
            else:
                self._watch(f"{path}.{name}", known, name)

    def _look_at_module(self, path: str, module: ModuleType) -> None:
        if module is logging or module.__name__ == "warnings":
            self.problem = f"reading a sample may log ({path})"
        elif is_own_module(module):
            self._modules.setdefault(module.__name__, (path, module))

    def _follow_names(self) -> bool:
        """Queue what names in code stand for, in the classes and modules that were reached.

        Returns:
            whether there is anything new.
        """
        for kind, path in list(self._kinds.items()):
            wanted = self.names.union(READING, _ENTERED, () if kind in self._held else _MADE)
            for name in sorted(wanted & vars(kind).keys()):
                method = function_of(vars(kind)[name])
                if isinstance(method, FunctionType) and is_own_code(method.__code__):
                    self._add(f"{path}.{name}", method)
        for path, module in list(self._modules.values()):
            for name in sorted(self.names & vars(module).keys()):
                if (module.__name__, name) not in self._followed:
                    self._followed.add((module.__name__, name))
                    self._watch(f"{path}.{name}", vars(module), name)
        return bool(self._queue)


_DESCRIPTORS = (FunctionType, classmethod, staticmethod, property, cached_property)


def try_to_look(dataset: Any) -> Reach | None:
    """Return what is reached now; None, with a word in the log, if looking at it fails."""
    try:
        return Reach(dataset)
    except Exception:
        # The script's own objects may do anything.
        log.info("what a dataset depends on cannot be looked at", exc_info=True)
        return None


def name_of_change(old: Reach, new: Reach) -> str:
    """Return the first thing, by its name, that differs between two looks."""
    both = old.marks | new.marks
    return min(name for name in both if old.marks.get(name) != new.marks.get(name))
