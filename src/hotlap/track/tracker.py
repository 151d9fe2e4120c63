"""`Tracker`, the interface of trackers (begin, log, end); which there are, and what they need."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hotlap.errors import UsageError, unknown_name


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its first record."""

    folder: Path
    """The run's."""
    files: Path
    """Folder for what the tracker writes; it exists."""
    name: str
    """Of the run: that of its folder."""
    resumed_step: int | None = None
    """The step that the run resumes from, None if it begins."""
    project: str = "hotlap"
    hidden: Mapping[str, Any] = field(default_factory=dict)
    """What the tracker noted of the run before it was resumed."""


class Tracker(Protocol):
    """Gets the records of one run, in the order of their steps, in a process of its own.

    A class of trackers is called with a `TrackedRun`: its constructor takes one argument.

    A resumed run takes again the steps after `resumed_step` that were logged before it was killed.
    They are not given to the tracker again, unless its attribute `hides_later_steps` is true: it
    hides, in `begin`, what it has of those steps.
    """

    def begin(self, config: Mapping[str, Any]) -> None:
        """Begin the run.

        Args:
            config: parameters of the task, technique and host, each a number or a text.
        """
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of one step.

        Args:
            step: optimizer steps done.
            values: `kind/name` -> number, as in `step/loss` or `evaluation/accuracy`.
        """
        ...

    def end(self, state: str) -> None:
        """End the run.

        Args:
            state: see `RunInfo.state`.
        """
        ...


@dataclass(frozen=True)
class _Known:
    module: str
    """The package that it needs."""
    package: str
    """What pip calls it."""


TRACKERS: Mapping[str, _Known] = {
    "tensorboard": _Known("tensorboard", "tensorboard"),
    "wandb": _Known("wandb", "wandb"),
    "mlflow": _Known("mlflow", "mlflow"),
    "trackio": _Known("trackio", "trackio"),
}
"""Name -> what it needs; `hotlap.track.adapters.NAME` holds its `ADAPTER`."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that cannot be used; nothing of theirs is imported.

    Raises:
        UsageError: there is no such tracker, or its package is not installed.
    """
    for name in names:
        if ":" in name:
            _check_outside(name)
            continue
        known = TRACKERS.get(name)
        if known is None:
            raise UsageError(
                f"{unknown_name(name, TRACKERS, 'tracker')} For a class of your own, pass "
                "module:NAME, as in `--track my_module:MyTracker`."
            )
        if importlib.util.find_spec(known.module) is None:
            raise UsageError(
                f"tracker '{name}' needs the package {known.package}, which is not installed. "
                f"Install it with `pip install {known.package}`."
            )
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"--track {min(twice)} was given twice. Remove one of them.")


def _check_outside(name: str) -> None:
    module, _, attribute = name.partition(":")
    # Only the first part: to look for the others, Python would have to run the package.
    places = [os.getcwd(), *sys.path]
    found = importlib.machinery.PathFinder.find_spec(module.partition(".")[0], places)
    if not attribute.isidentifier():
        raise UsageError(
            f"--track {name} names no class. Expected: module:NAME, as in "
            "`my_module:MyTracker`, where NAME is a class that is called with a "
            "hotlap.track.tracker.TrackedRun."
        )
    if found is None:
        raise UsageError(
            f"--track {name}: module '{module}' was not found. Check its name, install its "
            "package, or run the command in the folder that holds it."
        )


def make_tracker(name: str, run: TrackedRun) -> Tracker:
    """Import a tracker and make it for one run.

    Raises:
        Exception: whatever its package raises.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        module, attribute = f"hotlap.track.adapters.{name}", "ADAPTER"
    return getattr(importlib.import_module(module), attribute)(run)


def short_name(name: str) -> str:
    """Return a tracker's name as a file can have it."""
    return name.replace(":", ".")


def config_of(info: Any) -> dict[str, Any]:
    """Return what a tracker is told of a run, flat: each value a number, text, bool or None.

    Args:
        info: a `RunInfo`.
    """
    parts = {
        "task": info.task,
        "plan": info.plan,
        "host": info.host,
        "versions": info.versions,
        "code": info.code,
    }
    return {**flatten(parts), "command": " ".join(info.command)}


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested data with one level of names: each value a number, text, bool or None.

    >>> flatten({"optimizer": {"lr": 0.1}, "seeds": [1, 2]})
    {'optimizer.lr': 0.1, 'seeds': '[1, 2]'}
    """
    flat: dict[str, Any] = {}
    _flatten(data, "", flat)
    return flat


def _flatten(value: Any, path: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            _flatten(inner, f"{path}.{name}" if path else str(name), flat)
    elif value is None or isinstance(value, bool | int | float | str):
        flat[path] = value
    else:
        flat[path] = str(value)
