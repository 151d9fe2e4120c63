"""`--track`, `--every`, `--run-dir` of `train` and `run`, checked; parameters for `run.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError


@dataclass(frozen=True)
class TrackRequest:
    """What the command line asks for.

    Raises:
        UsageError: a tracker cannot be used or has no folder, or the interval is wrong.
    """

    trackers: Sequence[str]
    every: str
    """As a duration is written."""
    folder: str | None
    """The run's, None if there is none."""

    def __post_init__(self) -> None:
        from hotlap.track.sampler import check_every
        from hotlap.track.tracker import check_trackers

        check_every(self.every_s)
        if self.trackers and self.folder is None:
            raise UsageError(
                f"--track {self.trackers[0]} needs a folder to record the run in. Pass --run-dir "
                "FOLDER, or remove --track."
            )
        check_trackers(self.trackers)

    @property
    def every_s(self) -> float:
        """Seconds between two samples of system metrics."""
        from hotlap.cli.durations import parse_duration

        return parse_duration(self.every, "--every")


def about_recipe(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `run.json` says of a recipe's run, beside what its task says.

    Args:
        path: the recipe.
        values: of the recipe's parameters, defaults included.
    """
    return {
        "recipe": str(Path(path).resolve()),
        "parameters": {name: _as_plain(value) for name, value in values.items()},
    }


def _as_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
