"""A run's folder as a JSON document: what `run.json` says, and the curves of `metrics.jsonl`."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.report.jsonout import SCHEMA
from hotlap.report.page.documents import check_document
from hotlap.track.run_file import RUN, RunInfo
from hotlap.track.runs import Curve, read_given


def document_of_run(folder: Path) -> dict[str, Any]:
    """Return a run as a JSON document of the kind `run`.

    Its curves are named `kind/name`, as in `step/loss`, and have `steps`, `times_s` and `values`.

    Raises:
        MissingFile: it is no run's folder.
        UsageError: it cannot be read, or a newer hotlap wrote it.
    """
    run = read_given(folder)
    return {
        "schema": SCHEMA,
        "kind": "run",
        "folder": str(folder),
        "info": _info(run.info, folder / RUN),
        "curves": {name: _points(curve) for name, curve in run.curves.items()},
        "unreadable": run.unreadable,
        "findings": {
            kind: _readable(each, folder / f"{kind}.json") for kind, each in run.findings.items()
        },
    }


def _readable(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return a document that the folder keeps, or why it cannot be shown."""
    try:
        check_document(document, f"'{path}'")
    except UsageError as error:
        return {"unreadable": str(error)}
    return document


def _info(info: RunInfo | None, path: Path) -> dict[str, Any]:
    if info is None:
        # A crash may have torn it; the metrics are worth a page all the same.
        return {"unreadable": True} if path.is_file() else {}
    if type(info.schema) is int and info.schema > SCHEMA:
        raise UsageError(
            f"'{path}' has schema {info.schema}, which a newer hotlap wrote. Expected: {SCHEMA} or "
            "less. Update hotlap to show it."
        )
    return asdict(info)


def _points(curve: Curve) -> dict[str, list[Any]]:
    return {
        "steps": list(curve.steps),
        "times_s": list(curve.times_s),
        "values": [value if math.isfinite(value) else None for value in curve.values],
    }
