"""`--run-dir` of `diagnose`, `tune` and `verify`: keeps their JSON document in a run's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.errors import RunError
from hotlap.lab.subject import Subject

RunDir = Annotated[
    str | None,
    Parameter(
        name="--run-dir",
        metavar="DIR",
        help="Folder of a run that keeps the JSON document, too; `hotlap runs` shows it.",
    ),
]
"""The `--run-dir` of every command that measures and trains nothing."""


def check_run_dir(run_dir: str | None, subject: Subject) -> None:
    """Raise unless a folder can keep what is found out: a measurement is not to be lost.

    Raises:
        UsageError: it cannot be written into, or holds the run of something else.
    """
    if run_dir is None:
        return
    from hotlap.track.kept_documents import check_findings

    check_findings(Path(run_dir), subject.about())


def keep(run_dir: str | None, data: Mapping[str, Any], subject: Subject) -> None:
    """Keep a document in a run's folder, if that was asked for, and say so.

    Args:
        run_dir: the folder, None if it was not asked for.
        data: the document, with its kind.
        subject: what was measured.

    Raises:
        RunError: it cannot be written.
    """
    if run_dir is None:
        return
    from hotlap.cli.starting import say
    from hotlap.report import jsonout
    from hotlap.track.kept_documents import keep_finding

    try:
        path = keep_finding(Path(run_dir), data["kind"], jsonout.document(data), subject.about())
    except OSError as error:
        raise RunError(
            f"the result could not be kept in --run-dir {run_dir}: {error.strerror or error}. "
            "Check that this folder is writable and has free space, or choose another one."
        ) from error
    say(f"kept as {path}")
