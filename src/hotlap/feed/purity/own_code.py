"""Finds the user's own code in functions and classes, and the names that it uses."""

import dis
import sys
from functools import cached_property, lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hotlap.usercode import is_users

READING = ("__getitem__", "__getitems__", "__call__", "forward")
"""Methods by which a data set, and what it holds, is read."""
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def is_own_code(code: CodeType) -> bool:
    """True if code is the user's: of no library, and not Python's own."""
    name = code.co_filename
    # What was typed, or made from text, has no file; Python's own frozen modules have none either.
    return is_users(name) or (name.startswith("<") and not name.startswith("<frozen"))


def is_own_class(kind: type) -> bool:
    """True if a class is of a module of the user's."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or (module is not None and is_own_module(module))


def is_own_module(module: ModuleType) -> bool:
    """True if a module is the user's file, or was made by hand."""
    file = getattr(module, "__file__", None)
    if file is not None:
        return is_users(file)
    # Made by hand, as configurations are; a module of C without a file has a loader.
    return module.__spec__ is None and module.__name__ not in sys.builtin_module_names


@lru_cache(maxsize=1024)
def globals_used(code: CodeType) -> frozenset[str]:
    """Return the global names that code reads; an attribute of the same name is another thing."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= globals_used(constant)
    return frozenset(found)


def names_in(code: CodeType) -> set[str]:
    """Return the names that code uses, functions inside it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names_in(constant)
    return found


@lru_cache(maxsize=1024)
def names_imported(code: CodeType) -> frozenset[str]:
    """Return the modules that code imports where it runs, by the names that it gives them."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names_imported(constant)
    return frozenset(found)


def function_of(raw: Any) -> Any:
    """Return the function behind what a class holds: a method, static or not, or a property."""
    if isinstance(raw, property):
        return raw.fget
    if isinstance(raw, cached_property):
        return raw.func
    return getattr(raw, "__func__", raw)


def methods_reached(kind: type) -> dict[str, FunctionType]:
    """Return the methods that read, of the user's own classes, and those that they name."""
    found: dict[str, FunctionType] = {}
    names = set(READING)
    while names:
        name = names.pop()
        for owner in kind.__mro__:
            method = function_of(vars(owner).get(name))
            key = f"{owner.__name__}.{name}"
            if key in found or not isinstance(method, FunctionType):
                continue
            if is_own_code(method.__code__):
                found[key] = method
                names |= names_in(method.__code__)
    return found
