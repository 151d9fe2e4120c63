"""Chooses where a run starts: at step 0, or at the newest checkpoint that can be loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.checkpoint.read import Checkpoint, why_passed
from hotlap.engine.build import BuiltRun
from hotlap.engine.checks.same_on_ranks import check_start
from hotlap.engine.state.content import restore
from hotlap.engine.state.finding import find, is_step
from hotlap.engine.state.fitting import check_fits
from hotlap.engine.state.position import Position
from hotlap.errors import CheckpointCorrupt, HotlapError
from hotlap.trial.hyperparameters import group_hyperparameters


@dataclass(frozen=True)
class Beginning:
    """A run that was built, and where it stands."""

    built: BuiltRun
    saved: Checkpoint | None
    """What it goes on from, None if it begins."""
    position: Position
    unfit: frozenset[str]
    """Names of newer steps that prove themselves and are of no use."""


def begin(
    make: Callable[[], BuiltRun],
    saved: Checkpoint | None,
    resume: str | None,
    run_dir: Path | None,
    notice: Callable[[str], None],
) -> Beginning:
    """Build a run and put it where the newest step says that fits.

    Args:
        make: builds it anew each time, its seed included.
        saved: what is tried first, None to begin at the start.
        resume: see `find`.
        run_dir: the run's folder.
        notice: called, in words, with why steps were passed over.

    Raises:
        UsageError: the checkpoint is of another task, or not the same on all ranks.
        MissingFile: none is of use.
        CheckpointCorrupt: the step that was named is of no use.
    """
    unfit: dict[str, str] = {}
    while True:
        built = make()
        try:
            position, failure = _try(built, saved)
            values = _values_of(built) if built.reduce.world > 1 else {}
            check_start(saved, failure, values, built.reduce)
        except BaseException:
            built.end()
            raise
        if failure is None:
            return Beginning(built, saved, position, frozenset(unfit))
        built.end()
        if saved is None or resume is None or _names_a_step(resume):
            raise failure
        why = why_passed(failure)
        notice(f"skipped: {why}")
        unfit[saved.path.name] = why
        before, reasons = saved.path, tuple(unfit.values())
        saved, passed = find(resume, run_dir, before=before, unfit=reasons)
        for why in passed:
            notice(f"skipped: {why}")
        # Both hold the model of which another one is made now.
        del built, failure


def _try(built: BuiltRun, saved: Checkpoint | None) -> tuple[Position, CheckpointCorrupt | None]:
    """Return where a run stands, and why it could not be put where the checkpoint's was."""
    try:
        return Position() if saved is None else _restore(built, saved), None
    except CheckpointCorrupt as error:
        return Position(), error


def _values_of(built: BuiltRun) -> dict[str, Any]:
    """Return what only a built run shows, and would let ranks train different models."""
    rates = [group.get("lr") for group in group_hyperparameters(built.optimizer)]
    return {
        # What is no number may show where it lies in memory.
        "the list of learning rates": [each for each in rates if isinstance(each, int | float)],
        "the list of refused techniques": built.applied.refused(),
    }


def _names_a_step(resume: str) -> bool:
    return resume != "auto" and is_step(Path(resume))


def _restore(built: BuiltRun, saved: Checkpoint) -> Position:
    check_fits(built, saved)
    try:
        return restore(built, saved)
    except HotlapError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        # What was loaded half is thrown away with what it was loaded into.
        raise CheckpointCorrupt(
            f"checkpoint '{saved.path}' cannot be loaded: {type(e).__name__}: {e}. Pass the run's "
            "folder instead of this checkpoint, to use its newest intact one."
        ) from e
