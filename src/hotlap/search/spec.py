"""`SearchSpec`: the settings of a search as JSON: objectives, rungs, method, seeds. No torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from hotlap.errors import UnknownName, UsageError, unknown_name
from hotlap.search.space import Value

METHODS = ("asha", "random", "grid", "hyperband", "tpe")
STOPS_EARLY = ("asha", "hyperband")
SCHEDULES = ("whole", "rung")
_MINIMIZED = ("loss", "seconds", "memory")
_RUNGS = 3


@dataclass(frozen=True)
class Objective:
    """What is to be small, or large."""

    name: str = "loss"
    """Of a held-out metric, `loss` included; `seconds` of training, `memory` at its peak."""
    is_maximized: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `loss`, `max:accuracy` or `min:error`.

        Raises:
            UsageError: it does not say which way is better.
        """
        direction, colon, name = text.partition(":")
        if not colon and text in _MINIMIZED:
            return cls(text)
        if direction not in ("min", "max") or not name:
            raise UsageError(
                f"--objective {text} does not say whether it is to be maximized or minimized. "
                f"Expected: max:NAME or min:NAME, as in max:{name or text or 'accuracy'}, or one "
                f"of {', '.join(_MINIMIZED)}, which are minimized."
            )
        return cls(name, direction == "max")

    def rank(self, value: float) -> float:
        """Return a number that is the smaller, the better the value is."""
        return -value if self.is_maximized else value

    def __str__(self) -> str:
        return f"{'max' if self.is_maximized else 'min'}:{self.name}"


@dataclass(frozen=True)
class SearchSpec:
    """A search: everything that its trials and decisions follow from."""

    recipe: str
    args: tuple[str, ...]
    space: Mapping[str, Any]
    """Name -> distribution, as plain data."""
    defaults: Mapping[str, Value | None] | None
    """The recipe's own values, which are trial 0; None if it has none."""
    rungs: tuple[int, ...]
    """Steps after which trials are compared; the last is the whole run."""
    is_own_length: bool = False
    """True if `rungs` are those of a trial as long as the recipe's own: one that has more or fewer
    steps is compared after the same shares of them, and trained to its own end."""
    method: str = "asha"
    trials: int = 24
    reduction: int = 3
    """One of this many trials goes on from a rung to the next one."""
    schedule: str = "whole"
    """`whole`: trials keep the schedule of the whole run; `rung`: it ends where they are
    compared."""
    objective: Objective = field(default_factory=Objective)
    more: tuple[Objective, ...] = ()
    """Further objectives: trials are then compared in all of them at once."""
    seed: int = 0
    seeds: int = 3
    """Other seeds that the best configurations are repeated with."""
    points: int = 3
    """Of a grid, for each parameter with a continuous range."""
    memory_bytes: int | None = None
    """Trials that need more are no candidates."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Techniques and options that every trial is trained under."""
    device: str | None = None
    threads: int = 1
    """Of each trial; results differ in their last bits with another number."""
    digest: str = ""
    """Of the recipe's file."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives, the first one first."""
        return (self.objective, *self.more)

    def to_json(self) -> dict[str, Any]:
        """Return it as the journal's first line."""
        more = [str(each) for each in self.more]
        return {**asdict(self), "objective": str(self.objective), "more": more}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        names = {each.name for each in fields(cls)}
        values: dict[str, Any] = {key: value for key, value in data.items() if key in names}
        values["objective"] = Objective.parse(data["objective"])
        values["more"] = tuple(Objective.parse(each) for each in data.get("more", ()))
        for key in ("args", "rungs"):
            values[key] = tuple(values[key])
        return cls(**values)

    def difference(self, other: "SearchSpec") -> str | None:
        """Return in words what another search was asked otherwise, None if nothing."""
        # As they are read back: tuples become lists.
        mine, theirs = (json.loads(json.dumps(each.to_json())) for each in (self, other))
        for key in mine:
            if theirs[key] != mine[key]:
                if key == "digest":
                    return "the recipe's file was changed"
                if key == "is_own_length":
                    was, now = ("not given", "given") if theirs[key] else ("given", "not given")
                    return f"--max-steps was {was}, now it is {now}"
                return f"{key} was {theirs[key]}, now it is {mine[key]}"
        return None


def check_method(method: str) -> None:
    """Raise UnknownName for a method that does not exist."""
    if method not in METHODS:
        raise UnknownName(unknown_name(method, METHODS, "--method"))


def check_schedule(schedule: str) -> None:
    """Raise UnknownName for a choice of schedule that does not exist."""
    if schedule not in SCHEDULES:
        raise UnknownName(unknown_name(schedule, SCHEDULES, "--schedule"))


def rungs_of(method: str, max_steps: int, grace: int | None, reduction: int) -> tuple[int, ...]:
    """Return the steps after which trials are compared.

    Args:
        method: of the search; one that does not stop trials early has the last rung only.
        max_steps: the last rung.
        grace: the first rung; two reductions below the last if None.
        reduction: from rung to rung.

    Raises:
        UsageError: they do not go together.
    """
    if max_steps < 1:
        raise UsageError(f"--max-steps {max_steps} is not valid. Expected: 1 or more.")
    if reduction < 2:
        raise UsageError(f"--reduction {reduction} is not valid. Expected: 2 or more.")
    if method not in STOPS_EARLY:
        if grace is not None:
            raise UsageError(
                f"--grace {grace} cannot be used with --method {method}, which trains every trial "
                "to its end. Use --method asha or hyperband, or remove --grace."
            )
        return (max_steps,)
    if grace is None:
        grace = max(1, max_steps // reduction ** (_RUNGS - 1))
    if not 1 <= grace <= max_steps:
        raise UsageError(
            f"--grace {grace} is not valid. Expected: 1 to {max_steps}, the steps of a whole trial."
        )
    rungs = [max_steps]
    while rungs[0] // reduction >= grace:
        rungs.insert(0, rungs[0] // reduction)
    if rungs[0] != grace:
        # The first rung is where the user said, the others are fractions of the whole.
        rungs[0:1] = [grace] if len(rungs) > 1 else [grace, *rungs]
    return tuple(dict.fromkeys(rungs))
