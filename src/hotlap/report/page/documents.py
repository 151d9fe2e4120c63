"""Reads a JSON document of hotlap, and finds out of what kind it is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError
from hotlap.report.jsonout import SCHEMA

KINDS = (
    "diagnosis",
    "memory",
    "tuning",
    "verdict",
    "training",
    "demo",
    "search",
    "run",
    "comparison",
)
"""Of which there is a page."""
_KEYS = {
    "search": ("search", "trials", "comparison"),
    "tuning": ("outcome", "ladder", "trials"),
    "memory": ("findings", "memory"),
    "diagnosis": ("findings", "phases"),
    "training": ("epochs", "techniques", "steps"),
}
"""Kind -> keys by which a document that does not name its kind is known, as older ones do not."""
_SOURCES = (
    "that `hotlap diagnose`, `tune`, `verify`, `train` or `search` printed with --json, as in "
    "`hotlap tune train.py --json > tuning.json`"
)


def read_document(path: Path) -> dict[str, Any]:
    """Read what a command with `--json` printed into a file.

    Raises:
        MissingFile: there is no such file.
        UsageError: it is no document of hotlap, or of a kind without a page.
    """
    if not path.is_file():
        raise MissingFile(
            f"'{path}' was not found. Expected: a JSON document {_SOURCES}; or the folder of a run "
            "or of a search."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"'{path}' is not JSON: {error}. Expected: a document {_SOURCES}."
        ) from error
    check_document(document, f"'{path}'")
    return document


def check_document(document: Any, name: str) -> str:
    """Return the kind of a document.

    Args:
        document: what was read.
        name: how messages call it.

    Raises:
        UsageError: no page can be made of it.
    """
    if not isinstance(document, Mapping) or type(document.get("schema")) is not int:
        raise UsageError(
            f"{name} has no `schema`, so hotlap did not write it. Expected: a document {_SOURCES}."
        )
    if document["schema"] > SCHEMA:
        raise UsageError(
            f"{name} has schema {document['schema']}, which a newer hotlap wrote. Expected: "
            f"{SCHEMA} or less. Update hotlap to show it."
        )
    kind = document.get("kind")
    if kind is None:
        kind = next((k for k, keys in _KEYS.items() if all(key in document for key in keys)), None)
    if kind not in KINDS:
        what = f"is of the kind '{kind}'" if kind is not None else "is of an unknown kind"
        raise UsageError(f"{name} {what}, which has no page. Expected: a document {_SOURCES}.")
    return str(kind)
