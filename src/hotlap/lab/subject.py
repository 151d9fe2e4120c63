"""`Subject`: protocol of what trials run; `RecipeRun`: a recipe's command line and environment."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from hotlap.plan import Plan
from hotlap.trial.environment import surroundings
from hotlap.trial.protocol import ENVIRONMENT, Config


class Subject(Protocol):
    """Something that trains, as its user starts it; its `str` is what the user has typed."""

    @property
    def kind(self) -> Literal["script", "module", "command", "recipe"]: ...
    @property
    def path(self) -> str | None: ...
    @property
    def module(self) -> str | None: ...
    @property
    def program(self) -> str | None: ...
    @property
    def args(self) -> tuple[str, ...]: ...

    @property
    def python(self) -> str:
        """The interpreter that runs it, unless a command chooses its own."""
        ...

    @property
    def step_owner(self) -> Literal["script", "engine"]:
        """Whose code takes the steps: where it is hotlap's engine, a run is as long as is needed,
        and can be trained from other seeds."""
        ...

    @property
    def folder(self) -> Path:
        """Its working folder."""
        ...

    def command(self) -> list[str]:
        """Return the command line of a trial's process."""
        ...

    def about(self) -> dict[str, Any]:
        """Return what a run's file says of it."""
        ...

    def environment(
        self, config: Config, base: Mapping[str, str], *, seed: int | None = None
    ) -> dict[str, str]:
        """Return the environment of a trial's process.

        Args:
            config: what the process is told.
            base: the environment that the user would start it in.
            seed: fixes Python's hash order where the subject itself is not repeatable.
        """
        ...


def start_module(module: str, folder: Path, python: str = sys.executable) -> list[str]:
    """Return the command line that starts a module of hotlap's, so that it finds what this process
    finds: `-m` alone would also look for modules in its working folder.

    Args:
        module: its name.
        folder: its working folder.
        python: what runs it.
    """
    is_seen = not {"", str(folder)}.isdisjoint(sys.path)
    return [python, *([] if is_seen else ["-P"]), "-m", module]


def plain(subject: Subject) -> str:
    """Return the subject under no plan, in words."""
    if isinstance(subject, RecipeRun) and subject.base:
        return f"the plain recipe with {subject.base}"
    return "the plain recipe" if subject.kind == "recipe" else "the plain script"


@dataclass(frozen=True)
class RecipeRun:
    """A recipe as `hotlap train` would start it; in a lab it takes the place of a script."""

    path: str
    args: tuple[str, ...] = ()
    python: str = sys.executable
    cwd: str = ""
    """Working folder, the current one if empty."""
    device: str | None = None
    """As torch names it; the first accelerator if None, else the CPU."""
    base: Plan = field(default_factory=Plan)
    """What every trial's plan contains, unless it says otherwise: without it nothing would fit."""
    module: None = None
    program: None = None
    kind: Literal["recipe"] = "recipe"
    step_owner: Literal["engine"] = "engine"

    def command(self) -> list[str]:
        """Return the command line of a trial's process."""
        start = start_module("hotlap.engine.roles.process", self.folder, self.python)
        return [*start, self.path, *self.args]

    def environment(
        self, config: Config, base: Mapping[str, str], *, seed: int | None = None
    ) -> dict[str, str]:
        """Return the environment of a trial's process."""
        result = surroundings(config, base, trial=True, seed=seed)
        plan = {**self.base.techniques, **config.plan}
        told = config._replace(plan=plan, options={**config.options, "device": self.device})
        result[ENVIRONMENT] = told.to_text()
        return result

    @property
    def folder(self) -> Path:
        return Path(self.cwd or os.getcwd())

    def about(self) -> dict[str, Any]:
        """Return what a run's file says of it."""
        path = str((self.folder / self.path).resolve())
        return {"recipe": path, "arguments": " ".join(self.args)}

    def __str__(self) -> str:
        return " ".join([self.path, *self.args])
