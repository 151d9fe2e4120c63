"""`--page FILE`: checks and writes the HTML file; adds host, time and command to a document."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.errors import RunError, UsageError

PageFile = Annotated[
    str | None,
    Parameter(
        name="--page",
        metavar="FILE",
        help="Also write the result as one self-contained HTML page.",
    ),
]
"""The `--page` of every command that has one."""
_BEGINS = b"<!doctype html>\n<!-- hotlap -->"
"""How a page begins: nothing else is overwritten."""


def check_page(page: str | None) -> None:
    """Raise unless a page can be written there: a measurement is not to be lost to a wrong path.

    Raises:
        UsageError: there is no such folder, or something else is there.
    """
    if page is None:
        return
    path = Path(page)
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"--page {page}: the folder '{path.parent}' was not found. Create this "
            "folder, or pass a file in another folder to --page."
        )
    if path.exists() and not (path.is_file() and _is_page(path)):
        raise UsageError(
            f"the page's file '{page}' exists and was not written by hotlap, so it was not "
            "overwritten. Use --page FILE to write the page to another file."
        )


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGINS)) == _BEGINS


def signed(
    kind: str,
    data: Mapping[str, Any],
    host: Any,
    tokens: Sequence[str],
    command: str,
    at: str | None = None,
) -> dict[str, Any]:
    """Return a document with its kind, and with what made it.

    Args:
        kind: one of `documents.KINDS`.
        data: the document.
        host: the `Host` it was made on, or what `made_on` said when it was.
        tokens: of the command line, after the command's name.
        command: the command's name.
        at: when it was measured; now if None.
    """
    made = host if isinstance(host, Mapping) else made_on(host, at)
    return {
        "kind": kind,
        **data,
        "made": {"command": shlex.join(["hotlap", command, *tokens]), **made},
    }


def made_on(host: Any, at: str | None = None) -> dict[str, Any]:
    """Return what a document says of its making: time, versions and machine.

    Args:
        host: the `Host` it is made on.
        at: when; now if None.
    """
    import hotlap

    gpus = [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in host.gpus]
    return {
        "time": time.strftime("%Y-%m-%d at %H:%M %z") if at is None else at,
        "hotlap": hotlap.__version__,
        "torch": host.torch,
        "cuda": host.torch_cuda,
        "driver": host.gpus[0].driver if host.gpus else None,
        "python": host.python,
        "system": host.system,
        "host": {
            "cpu": host.cpu,
            "cores": host.cores,
            "memory_bytes": host.memory_bytes,
            "gpus": gpus,
            "omp_num_threads": host.omp_num_threads,
            "busy_cores": host.busy_cores,
        },
    }


def write_page(page: str | None, data: Mapping[str, Any]) -> None:
    """Write the page of a document, if one was asked for, and say so.

    Raises:
        RunError: the file cannot be written.
    """
    if page is None:
        return
    import json

    from hotlap.cli.starting import say
    from hotlap.report import jsonout
    from hotlap.report.page.writing import write_page as write

    # As a stored document is read, so that both make the same page.
    document = json.loads(jsonout.document(data))
    try:
        write(document, Path(page))
    except OSError as error:
        raise RunError(
            f"the page could not be written to '{page}': {error.strerror}. Check that the folder "
            "is writable and has free space, or use --page FILE to write to another file."
        ) from error
    say(f"page written to {page}")
