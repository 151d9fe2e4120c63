"""Reads what a run left in its folder: `run.json` and `metrics.jsonl`, whole or torn."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError
from hotlap.report.jsonout import SCHEMA

RUN, METRICS = "run.json", "metrics.jsonl"
_MEASURED = ("step", "epoch", "evaluation", "system")


def is_run(folder: Path) -> bool:
    """True if a folder has the files of a run."""
    return (folder / RUN).is_file() or (folder / METRICS).is_file()


def document_of_run(folder: Path) -> dict[str, Any]:
    """Return a run as a JSON document of the kind `run`.

    Its curves are named `kind/name`, as in `step/loss`, and have `steps`, `times_s` and `values`.

    Raises:
        MissingFile: it is no run's folder.
        UsageError: a newer hotlap wrote it.
    """
    if not is_run(folder):
        raise MissingFile(
            f"'{folder}' is no run's folder: it has neither {RUN} nor {METRICS}. Expected: the "
            "--run-dir of `hotlap train`, or a JSON document that a command wrote with --json."
        )
    info = _info_of(folder)
    schema = info.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise UsageError(
            f"'{folder / RUN}' has schema {schema}, which a newer hotlap wrote. Expected: {SCHEMA} "
            "or less. Update hotlap to show it."
        )
    records, unreadable = _records_of(folder)
    return {
        "schema": SCHEMA,
        "kind": "run",
        "folder": str(folder),
        "info": info,
        "curves": _curves_of(records),
        "unreadable": unreadable,
    }


def _info_of(folder: Path) -> Mapping[str, Any]:
    path = folder / RUN
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        # A crash may have torn it; the metrics are worth a page all the same.
        return {"unreadable": True}
    return found if isinstance(found, dict) else {"unreadable": True}


def _records_of(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records that count, and the number of lines that hold none."""
    path = folder / METRICS
    if not path.is_file():
        return [], 0
    content = path.read_bytes()
    # A line without its end is being written, or was when the run died.
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    parsed = [_record_of(line) for line in lines]
    records = [each for each in parsed if each is not None]
    return _valid(records), len(parsed) - len(records)


def _record_of(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("values"), dict):
        return None
    whole = type(data.get("step")) is int and type(data.get("time_s")) in (int, float)
    return data if whole and isinstance(data.get("kind"), str) else None


def _valid(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without those that a later start or resume has superseded."""
    valid: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] == "began":
            valid.clear()
        elif record["kind"] == "resumed":
            valid = [each for each in valid if each["step"] <= record["step"]]
        elif record["kind"] in _MEASURED:
            valid.append(record)
    return valid


def _curves_of(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for record in records:
        for name, value in record["values"].items():
            empty: dict[str, list[Any]] = {"steps": [], "times_s": [], "values": []}
            curve = found.setdefault(f"{record['kind']}/{name}", empty)
            curve["steps"].append(record["step"])
            curve["times_s"].append(record["time_s"])
            is_finite = type(value) in (int, float) and math.isfinite(value)
            curve["values"].append(value if is_finite else None)
    return found
