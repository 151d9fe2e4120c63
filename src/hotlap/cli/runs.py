"""`hotlap runs`: lists the runs in a folder, compares two of them, and opens pages of them."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag
from hotlap.cli.page import check_page, write_page
from hotlap.cli.report import document_at
from hotlap.errors import MissingFile, RunError, UsageError
from hotlap.report import jsonout
from hotlap.report import runs as pages
from hotlap.report.terminal import page_console
from hotlap.track.comparing import compare_runs, summary_of
from hotlap.track.runs import find_runs, read_given

_COMPARE, _OPEN = "compare", "open"
_LONGEST = 60
"""Letters of a run's name in that of a temporary file."""


def runs(
    *what: Annotated[
        str,
        Parameter(
            help="A folder of runs, `.` if none; or `compare` and the folders of two; or `open` "
            "and that of one, of two, or of a search."
        ),
    ],
    page: Annotated[
        str | None,
        Parameter(
            metavar="FILE", help="With `open`: where the page is written; a temporary file if none."
        ),
    ] = None,
    no_browser: Annotated[
        bool, Parameter(help="With `open`: write the page, and open no browser.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """List the runs in a folder, compare two of them, or open their page.

    A run is what `hotlap train --run-dir` and `hotlap run --run-dir` leave in their folder; it may
    also keep what `hotlap diagnose`, `tune` and `verify` found out with the same --run-dir.
    `compare A B` shows what differs in task, plan, host, versions and code, and the last values
    side by side. `open A` writes the page of a run, or of a search, `open A B` that of two runs
    compared, prints its path, and opens it in the browser. A folder that is called `compare` is
    listed by `./compare`.
    """
    if what[:1] == (_OPEN,):
        return _open(what[1:], page, no_browser=no_browser, as_json=as_json)
    if page is not None or no_browser:
        option, given = "--no-browser", "--no-browser"
        if page is not None:
            option, given = "--page", f"--page {page}"
        raise UsageError(
            f"{given} was given without `open`. Use `hotlap runs open DIR`, or remove {option}."
        )
    if what[:1] == (_COMPARE,):
        return _compare(what[1:], as_json=as_json)
    if len(what) > 1:
        raise UsageError(
            f"{len(what)} folders were given to `hotlap runs`. Expected: one folder to list, "
            "`compare A B` with the folders of two runs, or `open A`."
        )
    root = Path(what[0] if what else ".")
    if not root.is_dir():
        raise MissingFile(
            f"folder '{root}' was not found. Expected: a folder that contains run folders, as "
            "`hotlap train --run-dir` writes them. Check the path."
        )
    if not os.access(root, os.R_OK | os.X_OK):
        raise UsageError(
            f"folder '{root}' cannot be read: no permission. Choose a folder that you may read."
        )
    # One run at a time is in memory.
    found = [summary_of(folder) for folder in find_runs(root)]
    if as_json:
        jsonout.write({"runs": found})
    elif found:
        pages.show_list(page_console(), found, root)
    else:
        page_console().print(f"no runs in '{root}'")
    return 0


def _compare(folders: tuple[str, ...], *, as_json: bool) -> int:
    if len(folders) != 2:
        raise UsageError(
            f"compare was given {len(folders)} folders. Expected: the folders of two runs, "
            "as in `hotlap runs compare runs/1 runs/2`."
        )
    compared = compare_runs(*map(read_given, folders))
    if as_json:
        jsonout.write(compared.to_json())
    else:
        pages.show_comparison(page_console(), compared)
    return 0


def _open(folders: tuple[str, ...], page: str | None, *, no_browser: bool, as_json: bool) -> int:
    """Write the page of one run or of two, and open it."""
    from hotlap.report.browser import open_in_browser

    if len(folders) not in (1, 2):
        raise UsageError(
            f"open was given {len(folders)} folders. Expected: the folder of one run or of one "
            "search, or the folders of two runs, as in `hotlap runs open runs/1`."
        )
    for folder in folders:
        if Path(folder).is_file():
            raise UsageError(
                f"'{folder}' is a file. Expected: the folder of a run. If the file holds a result "
                f"that was printed with --json, use `hotlap report {folder}` to make its page."
            )
    document = document_at(*map(Path, folders))
    check_page(page)
    names = "-".join(Path(each).resolve().name for each in folders)
    to = _temporary(names) if page is None else page
    write_page(to, document)
    if as_json:
        jsonout.write({"page": os.path.abspath(to)})
    else:
        page_console().print(to, soft_wrap=True)
    if not no_browser:
        open_in_browser(Path(to))
    return 0


def _temporary(name: str) -> str:
    """Return a new file in the folder for temporary ones, which outlives this process."""
    try:
        handle, path = tempfile.mkstemp(prefix=f"hotlap-{name[:_LONGEST]}-", suffix=".html")
    except OSError as error:
        raise RunError(
            f"no temporary file could be created for the page: {error.strerror or error}. Pass "
            "--page FILE to write the page to a file that you choose."
        ) from error
    os.close(handle)
    return path


COMMAND = Command(
    "runs",
    runs,
    examples=(
        "hotlap runs runs                       # all runs in the folder runs",
        "hotlap runs compare runs/1 runs/2      # what differs, and where they ended",
        "hotlap runs open runs/1                # its page, in the browser",
        "hotlap runs open runs/1 runs/2 --page both.html --no-browser",
        "hotlap runs compare runs/1 runs/2 --json",
    ),
)
