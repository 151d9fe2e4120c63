"""Checks the files of `--out`, `--svg` and `--snapshot` before a diagnosis measures anything."""

from pathlib import Path

from hotlap.errors import UsageError
from hotlap.host.facts import Host


def check_json(path: Path, given: str) -> None:
    """Raise unless a report can be written there.

    Args:
        path: of the file.
        given: how it was given, for the message, as in `--out report.json`.

    Raises:
        UsageError: there is no such folder, or something else is there.
    """
    _check_place(path, given, b"{")


def check_svg(path: Path, given: str) -> None:
    """Raise unless a picture can be written there.

    Args:
        path: of the file.
        given: how it was given, for the message, as in `--svg a.svg`.

    Raises:
        UsageError: there is no such folder, or something else is there.
    """
    _check_place(path, given, b"<svg")


def check_snapshot(path: Path, given: str, host: Host) -> None:
    """Raise unless a snapshot of a GPU's memory can be written there.

    Args:
        path: of the file.
        given: how it was given, for the message, as in `--snapshot a.pickle`.
        host: where it is measured.

    Raises:
        UsageError: there is no such folder, something else is there, or the host has no GPU.
    """
    _check_place(path, given, b"\x80")
    if not host.gpus:
        option = given.partition(" ")[0].partition("=")[0]
        raise UsageError(
            f"{given}: no CUDA GPU was found on this host, and only CUDA memory has a snapshot. "
            f"Remove {option}. To see the memory of training on a CPU over time, use `hotlap "
            "diagnose SCRIPT --memory --svg FILE`."
        )


def _check_place(path: Path, given: str, begins: bytes) -> None:
    """Raise UsageError unless a file can be written there; only one of its own kind is replaced."""
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"{given}: the folder '{path.parent}' was not found. Create it, or choose another file."
        )
    if not path.exists():
        return
    if not path.is_file() or not _begins_with(path, begins):
        raise UsageError(
            f"{given} exists and was not written by this option, so it was not overwritten. Choose "
            "another file."
        )


def _begins_with(path: Path, begins: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(begins)) == begins
