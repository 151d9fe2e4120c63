"""Chooses and checks the folder of a search (`--run-dir`); deletes one (`--again`). No torch."""

import os
import shutil
from pathlib import Path

from hotlap.checkpoint.files import check_path
from hotlap.checkpoint.lock import Lock
from hotlap.errors import UsageError
from hotlap.search.study import JOURNAL, TRIALS


def folder_of(recipe: str, given: str | None) -> Path:
    """Return the folder that was given, else that of the recipe in the current folder.

    Raises:
        UsageError: there cannot be such a folder, or it holds something else.
    """
    path = Path(given) if given is not None else Path(os.getcwd()) / f"{Path(recipe).stem}.search"
    check_path(path)
    if path.is_dir() and any(path.iterdir()) and not (path / TRIALS).is_dir():
        raise UsageError(
            f"'{path}' is not empty and does not hold a search. Choose another folder with "
            "--run-dir."
        )
    return path


def delete(folder: Path) -> None:
    """Delete what a folder holds of a search.

    Raises:
        UsageError: a search is running in it.
    """
    if not (folder / TRIALS).is_dir():
        return
    lock = Lock(folder / TRIALS)
    lock.take()
    # The journal first: without it, nothing refers to what is left.
    (folder / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(folder / TRIALS)
    lock.release()
