"""How far a plain script's run had come, from what its file says of epochs, steps and updates."""

from dataclasses import dataclass
from pathlib import Path

from hotlap.engine.state.position import Position
from hotlap.errors import UsageError
from hotlap.task import Task


@dataclass(frozen=True)
class Counts:
    """What a file says of how far its run had come; None where it says nothing."""

    epoch: int | None = None
    """Scripts save the number of the epoch that they finished, from 0 or from 1."""
    step: int | None = None
    updates: int | None = None
    """Counted by the optimizer."""
    last_epoch: int | None = None
    """Counted by the scheduler: epochs or steps."""

    def __str__(self) -> str:
        words = {
            "epoch": self.epoch,
            "step": self.step,
            "the optimizer's number of updates": self.updates,
            "the scheduler's last_epoch": self.last_epoch,
        }
        known = [f"{name} is {count}" for name, count in words.items() if count is not None]
        return ", ".join(known) or "no epoch, no step and no count of updates"


def find_position(
    counts: Counts, task: Task, epochs_done: int | None, path: Path
) -> tuple[Position, str]:
    """Return where a run continues, and why there, in words.

    Scripts number epochs from 0 or from 1. Counted updates decide between the two, or the
    scheduler. If neither is known, numbers from 0 are assumed.

    Args:
        counts: what the file says.
        task: what is learned.
        epochs_done: what the user says, which is then taken.
        path: of the file, for messages.

    Raises:
        UsageError: what the file says does not fit together, or is not enough.
    """
    each = None if task.is_stream else task.steps_per_epoch
    if each is None:
        return _in_stream(counts, epochs_done, path)
    if epochs_done is not None:
        return _as_told(counts, each, epochs_done, path)
    by_step = task.schedule_per == "step"
    steps = next(
        (n for n in (counts.updates, counts.step, counts.last_epoch if by_step else None) if n),
        None,
    )
    if steps is None:
        return _by_epochs(counts, each, by_step, path)
    done, rest = divmod(steps, each)
    is_clear = rest == 0 and counts.epoch in (None, done - 1, done)
    if not is_clear or not _follows(counts, done, steps, task):
        more = f" and {rest} step{'s' * (rest > 1)}" if rest else ""
        raise UsageError(
            f"how many epochs of the run in '{path}' were done is unclear: {counts}, and an epoch "
            f"of the recipe has {each} steps, so {steps} steps are {_epochs(done)}{more}. Pass the "
            "number of epochs done, as in --epochs-done 3, or use the script's batch size, "
            "accumulation, drop_last and schedule_per in the recipe."
        )
    base = "" if counts.epoch is None else f", numbered {_from(counts, done)}"
    why = f"{_epochs(done)} done{base}, as {steps} steps were counted and an epoch has {each}"
    if counts.step not in (None, steps):
        why += f"; step = {counts.step} is not used"
    return Position(steps, done), why


def _follows(counts: Counts, done: int, steps: int, task: Task) -> bool:
    """True if the scheduler stands there, or was saved right before its last step."""
    at = steps if task.schedule_per == "step" else done
    return counts.last_epoch in (None, at, at - 1)


def _as_told(counts: Counts, each: int, done: int, path: Path) -> tuple[Position, str]:
    steps = done * each
    more = max(0, (counts.updates or 0) - steps)
    if more >= each:
        raise UsageError(
            f"--epochs-done {done} does not fit '{path}': its optimizer has counted "
            f"{counts.updates} updates, but an epoch of the recipe has {each} steps. If {done} is "
            "right, set the batch size of the script that saved the file in the recipe. If the "
            f"recipe's batch size is right, pass --epochs-done {(counts.updates or 0) // each}."
        )
    why = f"{_epochs(done)} done, as --epochs-done says"
    if more:
        why += (
            f", and {more} steps of epoch {done + 1}; its other steps use the recipe's order of "
            "samples"
        )
    return Position(steps + more, done, more), why


def _by_epochs(counts: Counts, each: int, by_step: bool, path: Path) -> tuple[Position, str]:
    """Return the position where no steps were counted."""
    epoch, last = counts.epoch, None if by_step else counts.last_epoch
    if epoch is None and last is None:
        raise UsageError(_unknown(counts, path))
    if epoch is None or last in (epoch, epoch + 1):
        done = last or 0
        base = "" if epoch is None else f", numbered {_from(counts, done)}"
        why = f"{base}, as the scheduler's last_epoch is {done}"
        if done == epoch:
            why += f"; if it is numbered from 0, pass --epochs-done {done + 1}"
    elif last is None:
        done = epoch + 1
        why = f", assuming that it is numbered from 0; if not, pass --epochs-done {epoch}"
    else:
        raise UsageError(
            f"how many epochs of the run in '{path}' were done is unclear: {counts}, which should "
            f"be {epoch} or {epoch + 1}. Pass the number of whole epochs, as in --epochs-done 3."
        )
    return Position(done * each, done), f"{_epochs(done)} done{why}"


def _in_stream(counts: Counts, epochs_done: int | None, path: Path) -> tuple[Position, str]:
    """Return the position in a stream, whose epochs have no known number of steps."""
    steps = counts.updates if counts.updates is not None else counts.step
    if steps is None:
        raise UsageError(
            f"'{path}' does not say how many steps were done ({counts}), and the recipe's data is "
            "a stream, whose epochs have no known length. If one of the file's keys holds that "
            "number, pass --keys step=KEY. If none does, use --weights instead of --continue to "
            "start a new run from the weights."
        )
    if epochs_done is None and counts.epoch is None:
        raise UsageError(_unknown(counts, path))
    if epochs_done is not None:
        return Position(steps, epochs_done), f"{_epochs(epochs_done)} done, as --epochs-done says"
    done = (counts.epoch or 0) + 1
    why = f"assuming that it is numbered from 0; if not, pass --epochs-done {counts.epoch}"
    return Position(steps, done), f"{_epochs(done)} done, {why}"


def _unknown(counts: Counts, path: Path) -> str:
    return (
        f"'{path}' does not say how many epochs were done ({counts}). Pass the number, "
        "as in --epochs-done 3, or its key in the file, as in --keys epoch=KEY."
    )


def _from(counts: Counts, done: int) -> str:
    return "from 1" if counts.epoch == done else "from 0"


def _epochs(done: int) -> str:
    return "1 epoch" if done == 1 else f"{done} epochs"
