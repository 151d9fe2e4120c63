"""When a run is saved, where, and what it goes on from."""

import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.checkpoint.read import Checkpoint, newest, proves_itself, read
from hotlap.checkpoint.write import commit
from hotlap.engine.build import Built
from hotlap.engine.state import Position, capture
from hotlap.errors import MissingFile, UsageError

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
                f"'{text}' is no interval. Allowed: `500` or `500steps`, `2epochs`, `30s`, `10m`, "
                "`1h`."
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
    """

    def __init__(self, run_dir: Path, every: Every, keep: int = 2) -> None:
        self.root = run_dir / CHECKPOINTS
        self.every, self.keep = every, keep
        self._saved_at = time.monotonic()

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

    def save(self, built: Built, position: Position, clock: dict[str, Any]) -> Path:
        """Save the run, and return the folder of the step once it is durable."""
        tensors, state = capture(built, position)
        state = {**state, "clock": clock}
        step, keep = position.step, self.keep
        path = commit(self.root, step, tensors, state, is_whole=proves_itself, keep=keep)
        self._saved_at = time.monotonic()
        return path


def prepare(run_dir: Path, *, is_resumed: bool) -> None:
    """Make a run's folder, and see that checkpoints can be written into it.

    Raises:
        UsageError: it cannot be written into, or holds another run's checkpoints.
    """
    root = run_dir / CHECKPOINTS
    if not is_resumed and root.is_dir() and any(root.glob("step-*")):
        raise UsageError(
            f"'{run_dir}' holds a run already, whose checkpoints would be mixed with this one's. "
            "Allowed: --resume auto to go on with it, or another folder."
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UsageError(
            f"'{run_dir}' cannot hold a run's checkpoints: {error.strerror}. Allowed: a folder "
            "that can be made, and written into."
        ) from error


def find(resume: str, run_dir: Path | None) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to go on from, and why newer ones were passed over.

    With `auto` it is None where nothing was saved yet, so that the same command starts a run and
    goes on with it.

    Args:
        resume: a folder `step-...`, a run's folder, or `auto` for the newest of `run_dir`.
        run_dir: the run's folder.

    Raises:
        UsageError: `auto` without a run's folder.
        MissingFile: there is no checkpoint where one was named, or none that could be used.
        CheckpointCorrupt: the one that was named is not what its manifest says.
    """
    if resume == "auto":
        if run_dir is None:
            raise UsageError("--resume auto needs the run's folder. Give --run-dir.")
        folder = run_dir
    else:
        folder = Path(resume)
        if folder.name.startswith("step-"):
            return read(folder), []
    found, passed = newest(folder / CHECKPOINTS)
    if found is None and (passed or resume != "auto"):
        why = f" ({'; '.join(passed)})" if passed else ""
        raise MissingFile(
            f"'{folder}' holds no checkpoint that could be used{why}. Allowed: a run's folder, or "
            "a folder `step-...` in it."
        )
    return found, passed
