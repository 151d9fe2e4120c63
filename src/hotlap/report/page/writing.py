"""Renders a document as an HTML page, by its kind and a template, and writes the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.host.whole_file import write_whole
from hotlap.report.page.diagnosis import page_of_diagnosis
from hotlap.report.page.documents import check_document
from hotlap.report.page.memory import page_of_memory
from hotlap.report.page.run import page_of_run
from hotlap.report.page.search import page_of_search
from hotlap.report.page.story import page_of_story
from hotlap.report.page.svg import COLORS
from hotlap.report.page.training import page_of_training
from hotlap.report.page.tuning import page_of_tuning
from hotlap.report.page.two_plans import page_of_compared
from hotlap.report.page.two_runs import page_of_comparison
from hotlap.report.page.view import Document, Page
from hotlap.report.printable import printable

_PAGES: dict[str, Callable[[Document], Page]] = {
    "diagnosis": page_of_diagnosis,
    "tuning": page_of_tuning,
    "verdict": page_of_compared,
    "training": page_of_training,
    "memory": page_of_memory,
    "search": page_of_search,
    "demo": page_of_story,
    "run": page_of_run,
    "comparison": page_of_comparison,
}


_LONG = 20
"""Letters of a word up to which it stays in one piece."""
_SHORT = 14
"""Letters of a cell up to which it stays in one line."""


def page_of(document: Document, name: str = "the document") -> Page:
    """Return what the page of a document shows.

    Args:
        document: as `--json` prints it, read.
        name: how messages call it.

    Raises:
        UsageError: no page can be made of it.
    """
    kind = check_document(document, name)
    try:
        return _PAGES[kind](document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{name} is not a complete document of the kind '{kind}' ({type(error).__name__}: "
            f"{error}), so it has no page. Run the hotlap command that printed it again with "
            "--json, and use what this prints unchanged."
        ) from error


def render(page: Page) -> str:
    """Return a page as one HTML file."""
    # 50 ms of imports, which commands without a page are better off without.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Charts escape what they hold: see `svg`.
    environment.filters["drawn"] = Markup
    environment.filters["cell_kind"] = _cell_kind
    return environment.get_template("page.html").render(page=page, colors=COLORS)


def _printable(value: Any) -> Any:
    """Escape control characters of a text; what is HTML already has none."""
    return printable(value) if type(value) is str else value


def _cell_kind(cell: str) -> str:
    """Return how a cell may be broken into lines, so that a table fits and reads well."""
    if max(map(len, cell.split()), default=0) > _LONG:
        return "long"
    return "short" if len(cell) <= _SHORT else ""


def write_page(document: Document, path: Path, name: str = "the document") -> None:
    """Write the page of a document, whole or not at all.

    Raises:
        UsageError: no page can be made of it.
        OSError: the file cannot be written.
    """
    write_whole(path, render(page_of(document, name)))
