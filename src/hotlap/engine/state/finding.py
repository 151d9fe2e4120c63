"""Finds the checkpoint to resume from: the newest intact step of a run's folder, or a named one."""

import os
from collections.abc import Sequence
from pathlib import Path

from hotlap.checkpoint.files import check_path
from hotlap.checkpoint.read import Checkpoint, find_newest, read
from hotlap.checkpoint.write import MANIFEST, STEP, committed_steps
from hotlap.engine.state.validity import check
from hotlap.errors import MissingFile, UsageError

CHECKPOINTS = "ckpt"
"""Folder of the steps, within that of the run."""


def run_folder(given: str | Path) -> Path:
    """Return a run's folder as a path, after a look whether there can be such a folder.

    It is absolute: the user's code may change the current folder while it trains.

    Raises:
        UsageError: it is empty, or no file system takes the name.
    """
    if not str(given):
        raise UsageError("run_dir='' is empty. Expected: the path of a folder.")
    check_path(Path(given))
    return Path(given).absolute()


def find(
    resume: str, run_dir: Path | None, *, before: Path | None = None, unfit: tuple[str, ...] = ()
) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to go on from, and why newer ones were passed over.

    With `auto` it is None where nothing was saved yet, so that the same command starts a run and
    goes on with it.

    Args:
        resume: a folder `step-...`, a run's folder, or `auto` for the newest of `run_dir`.
        run_dir: the run's folder.
        before: only steps before this one.
        unfit: why that one, and others behind it, were of no use.

    Raises:
        UsageError: `auto` without a run's folder.
        MissingFile: there is no checkpoint where one was named, or none that could be used.
        CheckpointCorrupt: the one that was named is not what its manifest says, or is no step of
            a run.
    """
    if resume == "auto":
        if run_dir is None:
            raise UsageError(
                "--resume auto needs a run's folder to look for checkpoints in. Pass --run-dir "
                "FOLDER."
            )
        folder = run_dir
    else:
        folder = Path(resume)
        if is_step(folder):
            named = read(folder)
            check(named)
            return named, []
    found, passed = find_newest(
        folder / CHECKPOINTS, check, before=None if before is None else before.name
    )
    if found is None and (passed or unfit or resume != "auto"):
        raise MissingFile(_why_none(folder, [*unfit, *passed]))
    return found, passed


def _why_none(folder: Path, problems: Sequence[str]) -> str:
    if not problems:
        return (
            f"'{folder}' holds no checkpoint. Expected: the folder RUN of a run that has saved "
            f"one, or the folder of a checkpoint, as in RUN/{CHECKPOINTS}/step-000000000500."
        )
    return (
        f"'{folder}' holds no usable checkpoint: {'; '.join(problems)}. Use the recipe and the "
        "plan that the run was started with. If you did, use the folder of another run, or start a "
        "new run with another --run-dir."
    )


def name_newest(error: Exception, run_dir: Path | None) -> None:
    """Note on an error the newest checkpoint of a run that ends with it, if there is one."""
    steps = [] if run_dir is None else committed_steps(run_dir / CHECKPOINTS)
    if steps:
        error.add_note(f"hotlap train: the newest checkpoint is '{steps[-1]}'.")


def is_step(folder: Path) -> bool:
    """True if that names one step and no run: a copy of a step may have any name."""
    # A run may be called `step-...`.
    return STEP.fullmatch(folder.name) is not None or os.path.lexists(folder / MANIFEST)


def run_of(step: Path) -> Path:
    """Return the folder of the run that a step belongs to.

    Raises:
        UsageError: it lies in none.
    """
    root = step.absolute().parent
    if root.name != CHECKPOINTS:
        raise UsageError(
            f"checkpoint '{step}' is not in a run's folder (RUN/{CHECKPOINTS}/step-...), so there "
            "is no folder for new checkpoints. Pass a new folder for them with --run-dir."
        )
    return root.parent
