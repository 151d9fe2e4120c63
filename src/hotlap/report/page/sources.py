"""The document of a page, from a JSON file, a run's folder, or two; where the page is written."""

from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.report.jsonout import SCHEMA
from hotlap.report.page.documents import read_document
from hotlap.report.page.run_folder import document_of_run


def document_of(first: Path, second: Path | None = None) -> dict[str, Any]:
    """Return the document that a page is made of.

    Args:
        first: a JSON document, or a run's folder.
        second: another run's folder.

    Raises:
        MissingFile: one of them was not found.
        UsageError: they are something else.
    """
    if second is None:
        return document_of_run(first) if first.is_dir() else read_document(first)
    for path in (first, second):
        if path.is_file():
            raise UsageError(
                f"'{path}' is a file, and only the folders of runs can be compared. Expected: two "
                f"run folders, or one file alone, as in `hotlap report {path}`."
            )
    runs = [document_of_run(path) for path in (first, second)]
    return {"schema": SCHEMA, "kind": "comparison", "runs": runs}


def default_page(first: Path, second: Path | None = None) -> Path:
    """Return where a page goes if nothing else was said."""
    if second is not None:
        return Path(f"{first.resolve().name}-{second.resolve().name}.html")
    return first / "report.html" if first.is_dir() else first.with_suffix(".html")
