"""`Saver`: when and where a run is saved, and the newest checkpoint to resume from."""

import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hotlap.checkpoint.files import make_folder, why_unwritable
from hotlap.checkpoint.layout import Tensors, own_tensors
from hotlap.checkpoint.litter import clear_away
from hotlap.checkpoint.lock import Lock
from hotlap.checkpoint.read import Checkpoint
from hotlap.checkpoint.shards import Piece, holds_pieces, join, local_of
from hotlap.checkpoint.write import (
    STEP,
    commit,
    committed_steps,
    not_a_step,
    set_aside,
    step_name,
)
from hotlap.checkpoint.write_shards import Commit, commit_shards
from hotlap.distributed.reduce import Reduce
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.agreeing import agree_on_parts
from hotlap.engine.state.content import capture
from hotlap.engine.state.finding import CHECKPOINTS
from hotlap.engine.state.interval import Every, Interval
from hotlap.engine.state.optimizer import trained_names
from hotlap.engine.state.position import Position
from hotlap.engine.state.validity import LISTED, broken_group, is_usable, listing, not_finite
from hotlap.errors import StorageError, UsageError

log = logging.getLogger("hotlap")


class Saver:
    """Saves a run into its folder when it is due.

    Each of several ranks has one, and makes the same calls. The first rank writes, and holds the
    lock of the folder; of what ranks hold in parts, each rank writes its own.

    Args:
        run_dir: the run's folder.
        every: how often; the end of the run is saved in any case.
        keep: how many steps to keep.
        notice: called, in words, with what went wrong and does not end the run.
        reduce: the ranks; alone if None.

    Raises:
        UsageError: fewer than one is to be kept.
    """

    def __init__(
        self,
        run_dir: Path,
        every: Every,
        keep: int,
        notice: Callable[[str], None] = log.warning,
        reduce: Reduce | None = None,
    ) -> None:
        check_keep(keep)
        self.reduce = Reduce() if reduce is None else reduce
        self.run_dir, self.root = run_dir, run_dir / CHECKPOINTS
        self.keep, self.notice = keep, notice
        self.unfit: set[str] = set()
        """Names of steps that prove themselves and could not be gone on from."""
        self.is_in_parts = False
        """True once any rank held parts when the run was saved; the same on all ranks."""
        self._lock = Lock(self.root)
        self._interval = Interval(every, self.reduce)
        self._is_state_known = False
        """True once what the optimizer keeps was found to be of a kind that can be saved."""

    def open(self, *, makes: bool = True) -> None:
        """Take the run's folder for this process; a second call does nothing.

        Args:
            makes: make the folder if it is missing; else nothing is done then.

        Raises:
            UsageError: it cannot be written into, or another run saves into it.
        """
        if self.reduce.rank:
            return
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
                f"{why_unwritable(error, self.root)}. Use --run-dir with a folder that can be "
                "created and written to."
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
        self._interval.restart()
        if self.reduce.rank:
            return
        self.open()
        steps = committed_steps(self.root)
        if saved is not None and self.holds(saved):
            # Newer ones that are damaged were passed over, and are written again.
            newer = [path for path in steps if path.name > saved.path.name]
            if any(map(self._is_usable, newer)):
                raise UsageError(
                    f"'{self.run_dir}' holds checkpoints up to {steps[-1].name}, newer than "
                    f"{saved.path.name}, from which this run continues, and the two would be "
                    "mixed. Use another --run-dir, or --resume auto to continue from the newest."
                )
            for path in newer:
                # Once newer steps are saved, nobody would know any more that it is no whole one.
                set_aside(path, self.notice)
        elif steps:
            raise UsageError(
                f"'{self.run_dir}' already holds a run, and this run's checkpoints would be mixed "
                "with it. Use --resume auto to continue it, or another --run-dir."
            )
        for path in sorted(self.root.iterdir()):
            if STEP.fullmatch(path.name) and not path.is_dir():
                raise UsageError(not_a_step(path))
        clear_away(self.root, self.notice)

    def holds(self, saved: Checkpoint) -> bool:
        """True if that is one of the run's own steps."""
        if not self.root.is_dir() or not STEP.fullmatch(saved.path.name):
            return False
        return saved.path.absolute().parent.samefile(self.root)

    def is_due(self, built: BuiltRun, position: Position, ends_epoch: bool) -> bool:
        """True if the run is to be saved at that position; to be asked after each step.

        Raises:
            UsageError: the optimizer keeps what no checkpoint can store.
        """
        if not self._is_state_known and built.optimizer.state:
            # Optimizers make their state in the first update: said now, not after an epoch.
            capture(built, position)
            self._is_state_known = True
        return self._interval.is_due(position, ends_epoch=ends_epoch)

    def steps_left(self, number: int) -> int:
        """Return how many steps may be taken at once after so many, so that none is missed that is
        to be saved; what is saved by epochs, or by time, is asked for after each launch."""
        steps = self._interval.every.steps
        return sys.maxsize if steps is None else steps - number % steps

    def save(
        self, built: BuiltRun, position: Position, clock: dict[str, Any], *, must: bool
    ) -> bool:
        """Save the run, and return once the step is durable: True, or False if it could not be.

        Args:
            built: the run.
            position: how far it has come.
            clock: of the epoch.
            must: False to say that it could not be saved, and go on: the next time is tried again.

        Raises:
            StorageError: it could not be saved, and must. On all ranks, if they hold parts.
            RunError: another rank is gone, or the parts of the ranks do not fit together.
        """
        tensors, state = self._capture(built, position, clock)
        if not self.is_in_parts and self.reduce.world > 1:
            self.is_in_parts = any(self.reduce.gather(holds_pieces(tensors)))
        try:
            if self.is_in_parts:
                self._save_parts(built, tensors, state, position)
            elif self.reduce.rank == 0:
                self._save_whole(built, tensors, state, position)
        except StorageError as error:
            if must:
                raise
            self.notice(f"{error} Training continues, and the next save is tried")
            self._interval.restart()
            return False
        self._interval.restart()
        return True

    def save_alone(self, built: BuiltRun, position: Position, clock: dict[str, Any]) -> None:
        """Save the run from this rank, while other ranks may be elsewhere.

        Raises:
            StorageError: it could not be saved, or other ranks hold parts of it.
        """
        tensors, state = self._capture(built, position, clock)
        if self.reduce.world > 1 and (self.is_in_parts or holds_pieces(tensors)):
            raise StorageError(
                f"the checkpoint of step {position.step} was not saved: {self.reduce.world} ranks "
                f"hold parts of it, but rank {self.reduce.rank} ended alone. Use "
                "`--resume auto` to continue from the last checkpoint."
            )
        self._save_whole(built, tensors, state, position)

    def _capture(
        self, built: BuiltRun, position: Position, clock: dict[str, Any]
    ) -> tuple[Tensors, dict[str, Any]]:
        tensors, state = capture(built, position)
        return tensors, {**state, "clock": clock}

    def _save_whole(
        self, built: BuiltRun, tensors: Tensors, state: dict[str, Any], position: Position
    ) -> None:
        """Write everything from this process."""
        # One process holds each tensor in one part.
        whole = {
            group: {name: join([t]) if isinstance(t, Piece) else t for name, t in names.items()}
            for group, names in tensors.items()
        }
        broken = _not_finite(tensors, state, trained_names(built))
        self._tell_broken(broken, position)
        commit(
            self.root,
            position.step,
            whole,
            {**state, LISTED: listing(whole)},
            is_whole=self._is_usable,
            keep=self.keep,
            is_healthy=broken is None,
            notice=self.notice,
        )

    def _save_parts(
        self, built: BuiltRun, tensors: Tensors, state: dict[str, Any], position: Position
    ) -> None:
        """Write what this rank holds, while the others do the same."""
        broken = _not_finite(tensors, state, trained_names(built))
        own = own_tensors(tensors, self.reduce.rank)
        agreed = agree_on_parts(own, state, position.step, broken, self.reduce)
        self._tell_broken(agreed.broken, position)
        commit_shards(
            Commit(self.root, position.step, agreed.layout, agreed.broken is None),
            own,
            agreed.state,
            self.reduce,
            is_whole=self._is_usable,
            keep=self.keep,
            notice=self.notice,
        )

    def _tell_broken(self, broken: str | None, position: Position) -> None:
        if broken is not None:
            self.notice(
                f"'{broken}' is not finite after step {position.step}, so training cannot resume "
                "from it. The step is saved for inspection, and the last finite one is kept"
            )

    def step_folder(self, position: Position) -> Path:
        """Return the folder of the step at that position."""
        return self.root / step_name(position.step)

    def _is_usable(self, path: Path) -> bool:
        return path.name not in self.unfit and is_usable(path)


def _not_finite(tensors: Tensors, state: Mapping[str, Any], trained: set[str]) -> str | None:
    """Return the first tensor of a rank, or number, that training cannot go on from; else None."""
    held = {
        group: {name: local_of(each) for name, each in tensors[group].items()}
        for group in ("model", "optimizer")
    }
    return (
        not_finite(held["model"], trained)
        or not_finite(held["optimizer"], set())
        or broken_group(state["optimizer"]["groups"], held["optimizer"])
    )


def check_keep(keep: Any) -> None:
    """Refuse a number of steps that cannot be kept."""
    if type(keep) is not int or keep < 1:
        raise UsageError(
            f"keep={keep!r} is not valid. Expected: an integer of at least 1, the number of "
            "checkpoints to keep."
        )
