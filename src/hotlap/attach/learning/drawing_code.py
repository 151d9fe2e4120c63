"""Whether the user's code that makes samples draws from a generator that its object holds."""

import dis
from collections.abc import Iterator
from types import CodeType

from hotlap.usercode import is_users

_MAKERS = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
"""Methods of data sets and transforms that make samples."""
_SEEDING = {"get_worker_info", "seed", "manual_seed"}


def draws_from(kind: type, attribute: str) -> bool:
    """Return whether samples are made with an attribute as a worker has got it.

    Where the code seeds a generator, makes it anew or asks for the number of its worker, copies
    are told apart.

    Args:
        kind: of the object that holds the attribute; a library's class draws nothing.
        attribute: its name.
    """
    names: set[str] = set()
    for code in _making_samples(kind):
        names.update(_names_in(code))
        if attribute in _set_by(code):
            return False
    return attribute in names and not names & _SEEDING


def _making_samples(kind: type) -> Iterator[CodeType]:
    """Give the user's methods of a class that make samples, with those that they call."""
    names = list(_MAKERS)
    # What is called comes behind those that call it.
    for name in names:
        code = getattr(getattr(kind, name, None), "__code__", None)
        if isinstance(code, CodeType) and is_users(code.co_filename):
            yield code
            names += [each for each in _names_in(code) if each not in names]


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _with_inner(each)


def _names_in(code: CodeType) -> list[str]:
    return [name for each in _with_inner(code) for name in each.co_names]


def _set_by(code: CodeType) -> set[str]:
    return {
        line.argval
        for each in _with_inner(code)
        for line in dis.get_instructions(each)
        if line.opname == "STORE_ATTR"
    }
