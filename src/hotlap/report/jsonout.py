"""The one JSON document that a command with `--json` prints."""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike, fspath
from typing import Any, TextIO

SCHEMA = 1
_STDOUT, _STDERR = 1, 2


class _Reserved:
    """Standard output, while it is kept for a document."""

    stream: TextIO | None = None
    descriptor: int | None = None
    """Of it, where descriptor 1 is that of standard error meanwhile."""


_reserved = _Reserved()


def document(data: Mapping[str, Any]) -> str:
    """Return a JSON document with `"schema": 1` first.

    Numbers that JSON does not have (infinities, not-a-number) become null; records become objects,
    paths text.

    Raises:
        TypeError: something in it is no data.
    """
    return json.dumps({"schema": SCHEMA, **_as_plain(data)}, indent=2, allow_nan=False)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Keep standard output for `write`: what a recipe prints meanwhile goes to standard error.

    So does what other processes print that a recipe starts, and what C code does.
    """
    if _reserved.stream is not None:
        yield
        return
    try:
        with _apart() as (_reserved.stream, _reserved.descriptor), redirect_stdout(sys.stderr):
            yield
    finally:
        _reserved.stream = _reserved.descriptor = None


@contextmanager
def _apart() -> Iterator[tuple[TextIO, int | None]]:
    """Move standard output to another descriptor, if it is that of the process."""
    try:
        is_own = sys.stdout.fileno() == _STDOUT and sys.stderr.fileno() == _STDERR
    except (AttributeError, OSError, ValueError):
        is_own = False
    if not is_own:
        yield sys.stdout, None
        return
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
        with open(kept, "w", encoding=sys.stdout.encoding, closefd=False) as stream:
            yield stream, kept
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


def reserved_descriptor() -> int | None:
    """Return the descriptor of standard output while it is kept for a document, else None.

    For a process that writes the document for this one.
    """
    return _reserved.descriptor


def write(data: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print a document, on standard output if `stream` is None."""
    out = stream or _reserved.stream or sys.stdout
    out.write(document(data) + "\n")
    out.flush()


def _as_plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _as_plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    to_json = None if isinstance(value, type) else getattr(value, "to_json", None)
    if to_json is not None:
        return _as_plain(to_json())
    if is_dataclass(value) and not isinstance(value, type):
        # Not `asdict`: it would not ask the records inside for their `to_json`.
        return {item.name: _as_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(_as_plain(item) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_as_plain(item) for item in value]
    if isinstance(value, PathLike):
        return str(fspath(value))
    raise TypeError(f"{value!r} is {type(value).__name__}, which is no data for JSON.")
