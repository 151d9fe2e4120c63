"""`Saver`: when and where a run is saved, and the newest checkpoint to resume from."""

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.checkpoint.files import check_path, make_folder, why_unwritable
from hotlap.checkpoint.litter import clear_away
from hotlap.checkpoint.lock import Lock
from hotlap.checkpoint.read import Checkpoint, find_newest, read
from hotlap.checkpoint.write import MANIFEST, STEP, commit, committed_steps, not_a_step, step_name
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.content import Position, capture
from hotlap.engine.state.optimizer import trained_names
from hotlap.engine.state.validity import LISTED, check, is_usable, listing, not_finite
from hotlap.errors import MissingFile, StorageError, UsageError

log = logging.getLogger("hotlap")

CHECKPOINTS = "ckpt"
_EVERY = re.compile(r"(?P<number>[1-9]\d{0,8})(?P<unit>|steps?|epochs?|s|m|h)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Every:
    """How often something is done: one of the three."""

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Every":
        """Read `500`, `500steps`, `2epochs`, `30s`, `10m` or `1h`.

        Raises:
            UsageError: it is none of these.
        """
        match = _EVERY.fullmatch(text.replace(" ", ""))
        if match is None:
            raise UsageError(
                f"'{text}' is not an interval. Expected: `500` or `500steps`, `2epochs`, `30s`, "
                "`10m` or `1h`."
            )
        number, unit = int(match["number"]), match["unit"]
        if unit in _SECONDS:
            return cls(seconds=number * _SECONDS[unit])
        return cls(epochs=number) if unit.startswith("epoch") else cls(steps=number)


class Saver:
    """Saves a run into its folder when it is due.

    Args:
        run_dir: the run's folder.
        every: how often; the end of the run is saved in any case.
        keep: how many steps to keep.
        notice: called, in words, with what went wrong and does not end the run.

    Raises:
        UsageError: fewer than one is to be kept.
    """

    def __init__(
        self, run_dir: Path, every: Every, keep: int, notice: Callable[[str], None] = log.warning
    ) -> None:
        check_keep(keep)
        self.run_dir, self.root = run_dir, run_dir / CHECKPOINTS
        self.every, self.keep, self.notice = every, keep, notice
        self.unfit: set[str] = set()
        """Names of steps that prove themselves and could not be gone on from."""
        self._lock = Lock(self.root)
        self._saved_at = time.monotonic()

    def open(self, *, makes: bool = True) -> None:
        """Take the run's folder for this process; a second call does nothing.

        Args:
            makes: make the folder if it is missing; else nothing is done then.

        Raises:
            UsageError: it cannot be written into, or another run saves into it.
        """
        try:
            if makes:
                make_folder(self.root)
            elif not self.root.is_dir():
                return
            self._lock.take()
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UsageError(
                f"checkpoints cannot be saved in '{self.run_dir}': "
                f"{why_unwritable(error, self.root)}. Choose a folder that can be created and "
                "written to."
            ) from error

    def close(self) -> None:
        """Let other runs have the folder; a second call does nothing."""
        self._lock.release()

    def prepare(self, saved: Checkpoint | None) -> None:
        """Make the run's folder, and see that checkpoints can be written into it.

        Args:
            saved: what the run goes on from, None if it begins.

        Raises:
            UsageError: it cannot be written into, another run saves into it, or it holds what
                those of this run would be mixed with.
        """
        self.open()
        steps = committed_steps(self.root)
        if saved is not None and self.holds(saved):
            # Newer ones that are damaged were passed over, and are written again.
            newer = [path for path in steps if path.name > saved.path.name]
            if any(map(self._is_usable, newer)):
                raise UsageError(
                    f"'{self.run_dir}' holds newer steps than {saved.path.name}, up to "
                    f"{steps[-1].name}, and this run's steps would be mixed with them. Use another "
                    "--run-dir, or --resume auto to continue from the newest."
                )
        elif steps:
            raise UsageError(
                f"'{self.run_dir}' already holds a run, and this run's checkpoints would be mixed "
                "with it. Use --resume auto to continue it, or another --run-dir."
            )
        for path in sorted(self.root.iterdir()):
            if STEP.fullmatch(path.name) and not path.is_dir():
                raise UsageError(not_a_step(path))
        clear_away(self.root, self.notice)
        self._saved_at = time.monotonic()

    def holds(self, saved: Checkpoint) -> bool:
        """True if that is one of the run's own steps."""
        if not self.root.is_dir() or not STEP.fullmatch(saved.path.name):
            return False
        return saved.path.absolute().parent.samefile(self.root)

    def is_due(self, position: Position, *, ends_epoch: bool, is_last: bool) -> bool:
        """True if the run is to be saved at that position."""
        if is_last:
            return True
        every = self.every
        if every.steps is not None:
            return position.step % every.steps == 0
        if every.epochs is not None:
            return ends_epoch and position.epoch % every.epochs == 0
        return time.monotonic() - self._saved_at >= (every.seconds or 0)

    def save(
        self, built: BuiltRun, position: Position, clock: dict[str, Any], *, must: bool
    ) -> None:
        """Save the run, and return once the step is durable.

        Args:
            built: the run.
            position: how far it has come.
            clock: of the epoch.
            must: False to say that it could not be saved, and go on: the next time is tried again.

        Raises:
            StorageError: it could not be saved, and must.
        """
        tensors, state = capture(built, position)
        state = {**state, "clock": clock, LISTED: listing(tensors)}
        broken = not_finite(tensors["model"], trained_names(built))
        broken = broken or not_finite(tensors["optimizer"], set())
        if broken is not None:
            self.notice(
                f"'{broken}' is not finite after step {position.step}, so training cannot resume "
                "from it. The step is saved for inspection, and the last finite one is kept"
            )
        try:
            commit(
                self.root,
                position.step,
                tensors,
                state,
                is_whole=self._is_usable,
                keep=self.keep,
                is_healthy=broken is None,
                notice=self.notice,
            )
        except StorageError as error:
            if must:
                raise
            self.notice(f"{error} Training continues, and the next save is tried")
        self._saved_at = time.monotonic()

    def step_folder(self, position: Position) -> Path:
        """Return the folder of the step at that position."""
        return self.root / step_name(position.step)

    def _is_usable(self, path: Path) -> bool:
        return path.name not in self.unfit and is_usable(path)


def run_folder(given: str | Path) -> Path:
    """Return a run's folder as a path, after a look whether there can be such a folder.

    Raises:
        UsageError: it is empty, or no file system takes the name.
    """
    if not str(given):
        raise UsageError("run_dir='' is empty. Expected: the path of a folder.")
    check_path(Path(given))
    return Path(given)


def check_keep(keep: Any) -> None:
    """Refuse a number of steps that cannot be kept."""
    if type(keep) is not int or keep < 1:
        raise UsageError(f"keep={keep!r} is not valid. Expected: an integer of at least 1.")


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
            raise UsageError("--resume auto needs the run's folder. Pass --run-dir.")
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
            f"'{folder}' holds no checkpoint. Expected: a run's folder, or a folder `step-...` in "
            "it."
        )
    # What each says one could do instead, was tried.
    found = "; ".join(problem.partition(". Use another checkpoint")[0] for problem in problems)
    return (
        f"'{folder}' holds no usable checkpoint: {found}. Use the recipe and the plan that the run "
        "was started with, or the folder of another run."
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
            "is no folder for new checkpoints. Pass --run-dir."
        )
    return root.parent
