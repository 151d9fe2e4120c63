"""`Order`: what the process of a job is told, and where it writes the outcome. No torch."""

import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import StorageError, UsageError
from hotlap.search.parameters import words_of
from hotlap.search.spec import SearchSpec
from hotlap.search.state import Job, Outcome, TrialState

_OUTCOME = "outcome.json"
TRIAL_FOLDER = re.compile(r"\d{4,}(-seed\d+)?")
"""Name of the folder of a trial, see `trial_folder`."""
LOG = "log.txt"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk says."""
EXIT_FULL, EXIT_STOPPED = 74, 75
"""Exit codes of a process that could not write the outcome of its job, and of one that was asked to
end (SIGTERM) and has saved where it stands."""


@dataclass(frozen=True)
class Order:
    """A job for a process."""

    recipe: str
    words: tuple[str, ...]
    """The recipe's arguments, those of the trial included."""
    folder: str
    """Of the trial: its checkpoints, its measures, its log."""
    until: int
    """Optimizer steps of the trial at the rung, see `share_of`."""
    repeat: int
    """Added to the task's seed."""
    objectives: tuple[str, ...]
    plan: Mapping[str, Any]
    device: str | None
    threads: int
    slot: int = 0
    """Number of the worker, from 0."""
    whole: int | None = None
    """Steps of the whole trial, if its schedule is to end at `until`; None for the task's own."""
    share_of: int | None = None
    """If given, the trial is trained for the share `until / share_of` of its own task's steps."""
    cwd: str | None = None
    """Working folder of the process; that of its parent if None."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Order":
        """Return what `to_json` gave."""
        plain = {**data, "words": tuple(data["words"]), "objectives": tuple(data["objectives"])}
        return cls(**plain)


def order_of(spec: SearchSpec, job: Job, trial: TrialState, folder: Path, slot: int = 0) -> Order:
    """Return the order for a job.

    Args:
        spec: of the search.
        job: what is to be done.
        trial: whose part it is.
        folder: of the search.
        slot: of the worker.
    """
    own = trial.number == 0 and spec.defaults is not None
    return Order(
        recipe=spec.recipe,
        words=(*spec.args, *([] if own else words_of(trial.values))),
        folder=str(trial_folder(folder, job)),
        until=spec.rungs[job.rung],
        repeat=job.repeat,
        objectives=tuple(each.name for each in spec.objectives),
        plan=spec.plan,
        device=spec.device,
        threads=spec.threads,
        slot=slot,
        whole=spec.rungs[-1] if spec.schedule == "rung" else None,
        share_of=spec.rungs[-1] if spec.is_own_length else None,
    )


def trial_folder(folder: Path, job: Job) -> Path:
    """Return the run folder of a trial, or of its repetition with another seed."""
    seed = f"-seed{job.repeat}" if job.repeat else ""
    return folder / "trials" / f"{job.trial:04}{seed}"


def outcome_path(order: Order) -> Path:
    """Return where the process of a job writes its outcome."""
    return Path(order.folder) / _OUTCOME


def read_outcome(order: Order, job: Job) -> Outcome | None:
    """Return the outcome that the process of a job has written, None if there is none.

    Raises:
        UsageError: the search asks for what the recipe does not give.
        StorageError: the trial could not be saved; that is no outcome.
    """
    path = outcome_path(order)
    if not path.exists():
        return None
    data = json.loads(path.read_text())
    if data.pop("until") != order.until:
        return None
    if data["state"] == "usage":
        raise UsageError(str(data["error"]))
    if data["state"] == "storage":
        raise full_disk(data["error"])
    return Outcome(job, **data)


def asks_in_vain(folder: Path) -> bool:
    """True if a trial has found that the search asks for what the recipe does not give."""
    path = folder / _OUTCOME
    return path.exists() and json.loads(path.read_text())["state"] == "usage"


def is_saved(folder: Path) -> bool:
    """True if a trial has a checkpoint."""
    return any((folder / "ckpt").glob("step-*"))


def full_disk(said: str) -> StorageError:
    """Return the error of a search whose trials cannot be saved."""
    return StorageError(
        f"a trial could not be saved, as the disk is full: {said.rstrip('.')}. The results so far "
        "are kept. Free some space, and run this `hotlap search` command again to continue the "
        "search."
    )


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, "w") as stream:
        json.dump(data, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
