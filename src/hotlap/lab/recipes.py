"""A recipe as what trials are made of: a process in which the engine trains it."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hotlap.attach.entry import surroundings
from hotlap.trial.protocol import ENVIRONMENT, Config


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
    module: None = None

    def command(self) -> list[str]:
        """Return the command line of a trial's process."""
        return [self.python, "-m", "hotlap.engine.roles.process", self.path, *self.args]

    def environment(
        self, config: Config, base: Mapping[str, str], *, seed: int | None = None
    ) -> dict[str, str]:
        """Return the environment of a trial's process."""
        result = surroundings(config, base, trial=True, seed=seed)
        told = replace(config, options={**config.options, "device": self.device})
        result[ENVIRONMENT] = told.to_text()
        return result

    @property
    def folder(self) -> Path:
        return Path(self.cwd or os.getcwd())

    def __str__(self) -> str:
        return " ".join([self.path, *self.args])
