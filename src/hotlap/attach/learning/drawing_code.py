"""What the user's code that makes samples draws from, and how workers are seeded."""

import dis
import random
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy
import torch

from hotlap.usercode import is_users

GENERATORS = (random.Random, numpy.random.Generator, numpy.random.RandomState, torch.Generator)
_MAKERS = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
"""Methods of data sets and transforms that make samples."""
_SEEDING = {"get_worker_info", "seed", "manual_seed"}
_TELLS_APART = {"get_worker_info", "initial_seed", "SeedSequence", "getpid", "urandom", "time"}
_DRAWING = {
    *("bernoulli", "choice", "choices", "gauss", "integers", "multinomial", "normal", "normal_"),
    *("permutation", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
    *("random", "randperm", "randrange", "sample", "shuffle", "standard_normal", "uniform"),
    *("uniform_",),
}


def draws_from(kind: type, attribute: str) -> bool:
    """Return whether samples are made with an attribute as a worker has got it.

    Where the code seeds a generator, makes it anew or asks for the number of its worker, copies
    are told apart.

    Args:
        kind: of the object that holds the attribute; a library's class draws nothing.
        attribute: its name.
    """
    names: set[str] = set()
    for function in _making_samples(kind):
        names.update(_names_in(function.__code__))
        if attribute in _named_by(function.__code__, "STORE_ATTR"):
            return False
    return attribute in names and not names & _SEEDING


def drawn_global(kind: type, functions: Iterable[Any] = ()) -> str:
    """Return the global variable with a generator that samples are made with, empty if none is.

    Args:
        kind: of a data set or a transform.
        functions: that make samples as well, as to put them together.
    """
    found = list(_making_samples(kind, functions))
    names = {name for each in found for name in _names_in(each.__code__)}
    made = {name for each in found for name in _named_by(each.__code__, "STORE_GLOBAL")}
    if names & _SEEDING:
        return ""
    return next(
        (
            name
            for each in found
            for name in sorted(_named_by(each.__code__, "LOAD_GLOBAL"))
            if name not in made and isinstance(each.__globals__.get(name), GENERATORS)
        ),
        "",
    )


def draws(kind: type, functions: Iterable[Any] = ()) -> bool:
    """Return whether the user's code makes samples with random numbers; see `drawn_global`."""
    found = _making_samples(kind, functions)
    return any(not _DRAWING.isdisjoint(_names_in(each.__code__)) for each in found)


def seeds_alike(init: Any) -> bool:
    """Return whether a `worker_init_fn` of the user's sets a seed that all workers share."""
    if not isinstance(init, FunctionType) or not is_users(init.__code__.co_filename):
        return False
    code = init.__code__
    names, number = set(_names_in(code)), code.co_varnames[: code.co_argcount]
    if not names & {"seed", "manual_seed"} or names & _TELLS_APART or code.co_freevars:
        return False
    return not any(
        line.argval in number for each in _with_inner(code) for line in dis.get_instructions(each)
    )


def _making_samples(kind: type, functions: Iterable[Any] = ()) -> Iterator[FunctionType]:
    """Give the user's functions of a class that make samples, with those that they call."""
    waiting = [getattr(kind, name, None) for name in _MAKERS] + list(functions)
    seen: set[int] = set()
    # What is called comes behind those that call it.
    for function in waiting:
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        if is_users(function.__code__.co_filename):
            seen.add(id(function))
            yield function
            for name in _names_in(function.__code__):
                waiting += [getattr(kind, name, None), function.__globals__.get(name)]


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _with_inner(each)


def _names_in(code: CodeType) -> list[str]:
    return [name for each in _with_inner(code) for name in each.co_names]


def _named_by(code: CodeType, instruction: str) -> set[str]:
    return {
        line.argval
        for each in _with_inner(code)
        for line in dis.get_instructions(each)
        if line.opname == instruction
    }
