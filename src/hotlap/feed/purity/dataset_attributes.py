"""Searches a dataset for generators and iterators of its own, and endless `__iter__`."""

import ast
import inspect
import random
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

_DEPTH = 3
_MOST_ITEMS = 1000
_FOREVER = ("count", "cycle", "repeat")


def own_generator(dataset: Any) -> str | None:
    """Return the path of a random generator among the data set's attributes, None without one."""
    numpy = sys.modules.get("numpy")
    kinds: list[Any] = [random.Random, torch.Generator]
    if numpy is not None and "numpy.random" in sys.modules:
        kinds += [numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator]
    # One that every process seeds is nobody's own.
    return _path(dataset, tuple(kinds), besides=(torch.default_generator,))


def own_iterator(dataset: Any) -> str | None:
    """Return the path of an iterator or an open file among the data set's attributes, or None."""
    return _path(dataset, (Iterator,))


def _path(dataset: Any, kinds: tuple[Any, ...], besides: tuple[Any, ...] = ()) -> str | None:
    found = _search(type(dataset).__name__, dataset, kinds, besides, _DEPTH)
    return next(found, None)


def _search(
    path: str, value: Any, kinds: tuple[Any, ...], besides: tuple[Any, ...], depth: int
) -> Iterator[str]:
    if isinstance(value, dict):
        parts = [(f"{path}[{key!r:.40}]", part) for key, part in _limit_items(value.items())]
    elif isinstance(value, list | tuple | set):
        parts = [(f"{path}[{number}]", part) for number, part in enumerate(_limit_items(value))]
    else:
        parts = [(f"{path}.{k}", part) for k, part in _limit_items(_attributes(value).items())]
    for name, part in parts:
        if isinstance(part, kinds) and not any(part is each for each in besides):
            yield name
        elif depth and not isinstance(part, torch.Tensor | type):
            yield from _search(name, part, kinds, besides, depth - 1)


def _limit_items(parts: Any) -> list[Any]:
    return [part for part, _ in zip(parts, range(_MOST_ITEMS), strict=False)]


def _attributes(value: Any) -> dict[str, Any]:
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}


def is_endless(dataset: Any) -> bool:
    """True if the source of `__iter__` shows that it never ends; False proves nothing.

    Seen are loops `while True` and over `itertools.count`, `cycle` and `repeat`, that nothing
    inside leaves.
    """
    try:
        source = textwrap.dedent(inspect.getsource(type(dataset).__iter__))
        (function,) = ast.parse(source).body
    except (AttributeError, OSError, TypeError, SyntaxError, ValueError):
        return False
    # Behind an `if`, or in a `try`, such a loop may never be reached, or be left.
    return isinstance(function, ast.FunctionDef) and any(map(_never_ends, function.body))


def _never_ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.With):
        return any(map(_never_ends, statement.body))
    if isinstance(statement, ast.While):
        test = statement.test
        forever = isinstance(test, ast.Constant) and bool(test.value)
    elif isinstance(statement, ast.For) and isinstance(statement.iter, ast.Call):
        called = statement.iter.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        arguments = len(statement.iter.args) + len(statement.iter.keywords)
        forever = name in _FOREVER and not (name == "repeat" and arguments > 1)
    else:
        return False
    leaves = (ast.Return, ast.Raise, ast.Break)
    return forever and not any(isinstance(node, leaves) for node in ast.walk(statement))
