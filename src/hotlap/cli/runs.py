"""`hotlap runs`: lists the runs in a folder, and compares two of them."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag
from hotlap.errors import MissingFile, UsageError
from hotlap.report import jsonout
from hotlap.report import runs as pages
from hotlap.report.terminal import page_console
from hotlap.track.comparing import compare_runs, summary
from hotlap.track.runs import find_runs, read_run

_COMPARE = "compare"


def runs(
    *what: Annotated[
        str, Parameter(help="A folder of runs, `.` if none; or `compare` and the folders of two.")
    ],
    as_json: JsonFlag = False,
) -> int:
    """List the runs in a folder, or compare two of them.

    A run is what `hotlap train --run-dir` and `hotlap run --run-dir` leave in their folder.
    `compare A B` shows what differs in task, plan, host, versions and code, and the last values
    side by side. A folder that is called `compare` is listed by `./compare`.
    """
    if what[:1] == (_COMPARE,):
        return _compare(what[1:], as_json=as_json)
    if len(what) > 1:
        raise UsageError(
            f"{len(what)} folders were given to `hotlap runs`. Expected: one folder to list, or "
            "`compare A B` with the folders of two runs."
        )
    root = Path(what[0] if what else ".")
    if not root.is_dir():
        raise MissingFile(
            f"folder '{root}' was not found. Expected: a folder that contains runs, each recorded "
            "with --run-dir. Check the path."
        )
    found = [read_run(folder) for folder in find_runs(root)]
    if as_json:
        jsonout.write({"runs": [summary(run) for run in found]})
    elif found:
        pages.show_list(page_console(), found, root)
    else:
        page_console().print(f"no runs in '{root}'")
    return 0


def _compare(folders: tuple[str, ...], *, as_json: bool) -> int:
    if len(folders) != 2:
        raise UsageError(
            f"compare was given {len(folders)} folders. Expected: those of two runs, as in "
            "`hotlap runs compare runs/1 runs/2`."
        )
    compared = compare_runs(*map(read_run, folders))
    if as_json:
        jsonout.write(compared.to_json())
    else:
        pages.show_comparison(page_console(), compared)
    return 0


COMMAND = Command(
    "runs",
    runs,
    examples=(
        "hotlap runs runs                       # all runs in the folder runs",
        "hotlap runs compare runs/1 runs/2      # what differs, and where they ended",
        "hotlap runs compare runs/1 runs/2 --json",
    ),
)
