"""A search's folder as the JSON document that `hotlap search --json` prints, from its journal."""

from pathlib import Path
from typing import Any

from hotlap.report.jsonout import SCHEMA
from hotlap.search.journal import read
from hotlap.search.result import SearchResult
from hotlap.search.study import JOURNAL, begun_by, read_study
from hotlap.techniques import EXACT_PLAN


def is_search(folder: Path) -> bool:
    """True if a folder holds a search."""
    return (folder / JOURNAL).is_file()


def document_of_search(folder: Path, reserved: frozenset[str]) -> dict[str, Any]:
    """Return a search, whether it runs or has ended, as a JSON document of the kind `search`.

    Args:
        folder: the search's.
        reserved: see `SearchResult.reserved`.

    Raises:
        UsageError: its journal is damaged.
    """
    state = read_study(folder)
    spec, path = state.spec, folder / JOURNAL
    _, origin = begun_by(read(path)[0], path)
    options = () if spec.device is None else ("--device", spec.device)
    found = SearchResult(state, reserved, options).to_json()
    if spec.plan != EXACT_PLAN.techniques:
        # The journal has the techniques, not which --plan named them.
        found = _without_commands(found)
    made = dict(origin.made)
    return {"schema": SCHEMA, "kind": "search", **found, "run_dir": str(folder), "made": made}


def _without_commands(found: dict[str, Any]) -> dict[str, Any]:
    front = [{**each, "command": None} for each in found["front"]]
    return {**found, "command": None, "front": front}
