"""Chooses and checks the folder of a search (`--run-dir`); deletes one (`--again`). No torch."""

import os
import shutil
from pathlib import Path

from hotlap.checkpoint import lock
from hotlap.checkpoint.files import check_path
from hotlap.checkpoint.lock import Lock
from hotlap.errors import UsageError
from hotlap.search.job_order import TRIAL_FOLDER
from hotlap.search.study import JOURNAL, TRIALS


def folder_of(recipe: str, given: str | None) -> Path:
    """Return the folder that was given, else that of the recipe in the current folder.

    Raises:
        UsageError: there cannot be such a folder, or it holds something else.
    """
    path = Path(given) if given is not None else Path(os.getcwd()) / f"{Path(recipe).stem}.search"
    check_path(path)
    if path.is_dir() and any(path.iterdir()) and not _holds_search(path):
        raise UsageError(
            f"'{path}' is not empty and does not hold a search. Choose another folder with "
            "--run-dir."
        )
    return path


def _holds_search(folder: Path) -> bool:
    """Return whether a folder is that of a search: others may have a folder `trials`, too."""
    trials = folder / TRIALS
    if not trials.is_dir():
        return False
    names = [path.name for path in trials.iterdir()]
    are_trials = all(name == lock.NAME or TRIAL_FOLDER.fullmatch(name) for name in names)
    return are_trials or (folder / JOURNAL).is_file()


def delete(folder: Path) -> None:
    """Delete what a folder holds of a search.

    Raises:
        UsageError: a search is running in it.
    """
    if not (folder / TRIALS).is_dir():
        return
    taken = Lock(folder / TRIALS)
    taken.take()
    # The journal first: trials without one are refused, see `Study.opened`.
    (folder / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(folder / TRIALS)
    taken.release()
