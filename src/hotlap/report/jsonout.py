"""The one JSON document that a command with `--json` prints."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike, fspath
from typing import Any, TextIO

SCHEMA = 1


class _Reserved:
    """Standard output, while it is kept for a document."""

    stream: TextIO | None = None


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
    """Keep standard output for `write`: what a recipe prints meanwhile goes to standard error."""
    before = _reserved.stream
    _reserved.stream = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _reserved.stream = before


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
