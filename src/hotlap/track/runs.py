"""Reads back what runs have left behind: `read_run` one of them, `find_runs` those in a folder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError
from hotlap.track.kept_documents import read_findings
from hotlap.track.metrics_file import METRICS, read_records
from hotlap.track.records import EPOCH, EVALUATION, STEP, SYSTEM, Record, valid_records
from hotlap.track.run_file import RUN, RunInfo

_DEPTH = 4
"""Levels of folders that are searched for runs."""


@dataclass(frozen=True)
class Curve:
    """One value of a run over its steps."""

    steps: tuple[int, ...]
    times_s: tuple[float, ...]
    """Seconds since the run began."""
    values: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """A run, as its folder tells it."""

    folder: Path
    info: RunInfo | None
    """None where `run.json` is missing or not readable."""
    records: tuple[Record, ...]
    """Without those that a resume has superseded."""
    unreadable: int = 0
    """Lines of `metrics.jsonl` that hold no record."""

    @cached_property
    def findings(self) -> Mapping[str, Mapping[str, Any]]:
        """The documents that the folder keeps, by their kind."""
        return read_findings(self.folder)

    @cached_property
    def curves(self) -> Mapping[str, Curve]:
        """Kind and name of each value, as in `step/loss` or `evaluation/accuracy` -> its curve."""
        found: dict[str, list[tuple[int, float, float]]] = {}
        for record in self.records:
            for name, value in record.values.items():
                row = (record.step, record.time_s, value)
                found.setdefault(f"{record.kind}/{name}", []).append(row)
        return {name: Curve(*zip(*rows, strict=True)) for name, rows in found.items()}

    @property
    def steps(self) -> int:
        """Optimizer steps, as far as they were recorded."""
        return max((record.step for record in self.records), default=0)

    @property
    def seconds(self) -> float:
        """Seconds from the run's begin to its last record."""
        return max((record.time_s for record in self.records), default=0.0)

    def last(self) -> dict[str, float]:
        """Return the last value of every curve but system metrics: evaluations come first."""
        kinds = (EVALUATION, EPOCH, STEP)
        return {
            name: curve.values[-1]
            for kind in kinds
            for name, curve in self.curves.items()
            if name.startswith(f"{kind}/")
        }

    def system_means(self) -> dict[str, float]:
        """Return the mean of each system metric, by its name."""
        return {
            name.removeprefix(f"{SYSTEM}/"): sum(curve.values) / len(curve.values)
            for name, curve in self.curves.items()
            if name.startswith(f"{SYSTEM}/")
        }


def read_run(folder: str | Path) -> Run:
    """Return what a run's folder tells.

    Raises:
        MissingFile: it is no run's folder.
        OSError: its files cannot be read.
    """
    folder = Path(folder)
    if not is_run(folder):
        raise MissingFile(
            f"'{folder}' is not a run's folder: it has neither {RUN} nor {METRICS}. Expected: a "
            "folder that `hotlap train` or `hotlap run` was given with --run-dir. For the folder "
            "of a `hotlap search`, use `hotlap report FOLDER`, or pass one of the runs in its "
            "folder 'trials'."
        )
    records, _, unreadable = read_records(folder / METRICS)
    return Run(folder, RunInfo.read(folder), tuple(valid_records(records)), unreadable)


def read_given(folder: str | Path) -> Run:
    """Return what a folder tells that the user has named.

    Raises:
        MissingFile: it is no run's folder.
        UsageError: its files cannot be read.
    """
    try:
        return read_run(folder)
    except OSError as error:
        raise UsageError(
            f"the run in '{folder}' cannot be read: '{error.filename}': {error.strerror or error}. "
            "Make that path a file that you may read, or pass the folder of another run."
        ) from error


def is_run(folder: Path) -> bool:
    """True if a folder holds what a run leaves behind."""
    return (folder / RUN).is_file() or (folder / METRICS).is_file()


def find_runs(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Give the folders of runs in a folder, itself and some levels below, sorted by path.

    Folders below it that cannot be looked into are passed over.
    """
    try:
        is_one = is_run(folder)
        is_deep = is_one or depth == 0
        inside = [] if is_deep else sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError:
        return
    if is_one:
        yield folder
    for each in inside:
        if not each.is_symlink() and not each.name.startswith("."):
            yield from find_runs(each, depth - 1)
