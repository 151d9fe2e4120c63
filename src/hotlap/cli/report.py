"""`hotlap report`: a stored result, a run or two runs, as one page."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag
from hotlap.cli.page import check_page, write_page
from hotlap.cli.parser import app_of, options_of


def report(
    first: Annotated[
        str,
        Parameter(
            help="A JSON document of another command, or the folder of a run or of a search.",
            name="PATH",
        ),
    ],
    second: Annotated[
        str | None, Parameter(help="The folder of a run to compare with it.", name="OTHER")
    ] = None,
    /,
    *,
    page: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="Where the page is written. Default: FILE.html beside FILE.json, report.html in "
            "the folder of a run or of a search, or A-B.html in the current folder for two runs.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Make one self-contained HTML page of a result: no script, no request, light and dark.

    PATH is what `hotlap diagnose`, `tune`, `verify`, `train` or `search` printed with --json, a
    run's folder (`hotlap train --run-dir DIR`), or that of a search, whether it runs or has ended.
    The folders of two runs are compared: what differs in task, plan, host and code, and their
    curves over each other.

    With --json the document that the page would show is printed, and a page is written only if
    --page says where.
    """
    from hotlap.report import jsonout
    from hotlap.report.page.sources import default_page

    paths = [Path(given) for given in (first, second) if given is not None]
    document = document_at(*paths)
    if json:
        jsonout.write(document)
    if page is None and json:
        return 0
    to = str(default_page(*paths)) if page is None else page
    check_page(to)
    write_page(to, document)
    return 0


def document_at(*paths: Path) -> dict[str, Any]:
    """Return the document that the page of a path is made of, or of two runs.

    Args:
        paths: a JSON document, the folder of a run or of a search; or the folders of two runs.

    Raises:
        MissingFile: one of them was not found.
        UsageError: they are something else, or cannot be read.
    """
    from hotlap.report.page.search_folder import document_of_search, is_search
    from hotlap.report.page.sources import document_of

    if len(paths) != 1 or not is_search(paths[0]):
        return document_of(*paths)
    from hotlap.cli import train

    return document_of_search(paths[0], frozenset(options_of(app_of(train.COMMAND))))


COMMAND = Command(
    name="report",
    function=report,
    examples=(
        "hotlap report tuning.json    # of `hotlap tune train.py --json > tuning.json`",
        "hotlap report runs/1    # a run's folder",
        "hotlap report runs/1 runs/2 --page compared.html    # one beside the other",
    ),
)
