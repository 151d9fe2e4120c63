"""`Script`: a script's command line and environment, by which hotlap is loaded in its process."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hotlap.trial.environment import surroundings
from hotlap.trial.protocol import OF_COMMAND, Config

SITE = Path(__file__).parent / "site"
_NOTEBOOK = Path(__file__).with_name("notebook.py")
"""Runs the cells of a notebook."""

WAITS = "HOTLAP_WAITS"
"""Set where a process is attached to only once it imports torch, and passes all on until then."""


def is_off() -> bool:
    """True if HOTLAP_OFF is set, to something else than 0: everything is run plain."""
    return os.environ.get("HOTLAP_OFF", "0") not in ("", "0")


def is_notebook(path: str | None) -> bool:
    """True if a file is a notebook, by its name."""
    return path is not None and path.endswith(".ipynb")


class Script(NamedTuple):
    """A training script, notebook or command as the user starts it.

    Exactly one of `path`, `module` and `program` is given.
    """

    path: str | None = None
    module: str | None = None
    program: str | None = None
    """A command's first word; the process that trains is one that it starts."""
    args: tuple[str, ...] = ()
    python: str = sys.executable
    cwd: str = ""
    """Working folder, the current one if empty."""

    @property
    def kind(self) -> Literal["script", "module", "command"]:
        if self.program is not None:
            return "command"
        return "module" if self.module else "script"

    @property
    def step_owner(self) -> Literal["script"]:
        return "script"

    def command(self) -> list[str]:
        """Return the command line, as if the user had typed it, or what runs a notebook."""
        if self.program is not None:
            return [self.program, *self.args]
        target = ["-m", self.module] if self.module else [str(self.path)]
        runner = [str(_NOTEBOOK)] if is_notebook(self.path) else []
        return [self.python, *runner, *target, *self.args]

    def environment(
        self, config: Config, base: Mapping[str, str], *, seed: int | None = None
    ) -> dict[str, str]:
        """Return the environment of a trial, see `environment`."""
        return environment(config, base, trial=True, seed=seed, of_command=self.is_command)

    @property
    def is_command(self) -> bool:
        return self.kind == "command"

    @property
    def folder(self) -> Path:
        return Path(self.cwd or os.getcwd())

    def about(self) -> dict[str, Any]:
        """Return what a run's file says of it."""
        arguments = " ".join(self.args)
        if self.program is not None:
            return {"command": self.program, "arguments": arguments}
        if self.module is not None:
            return {"module": self.module, "arguments": arguments}
        path = str((self.folder / str(self.path)).resolve())
        return {"script": path, "arguments": arguments}

    def __str__(self) -> str:
        target = f"-m {self.module}" if self.module else self.program or str(self.path)
        return " ".join([target, *self.args])


def environment(
    config: Config,
    base: Mapping[str, str],
    *,
    trial: bool,
    seed: int | None = None,
    of_command: bool = False,
) -> dict[str, str]:
    """Return the environment that attaches to a script started in it.

    Args:
        config: what the attached process is told.
        base: the environment that the user would start the script in.
        trial: True for a measurement: trackers are off.
        seed: fixes Python's hash order where the script itself is not repeatable.
        of_command: True if the processes that a command starts are attached to, once they import
            torch.
    """
    if of_command:
        config = config._replace(options={**config.options, OF_COMMAND: True})
    result = surroundings(config, base, trial=trial, seed=seed)
    if "PYTHONPATH" in base:
        result["HOTLAP_PYTHONPATH"] = base["PYTHONPATH"]
    result["PYTHONPATH"] = os.pathsep.join(
        [str(SITE), *([base["PYTHONPATH"]] if base.get("PYTHONPATH") else [])]
    )
    result["HOTLAP_ATTACH"] = config.to_text()
    if of_command:
        result[WAITS] = "1"
    result.pop("HOTLAP_INSIDE", None)
    return result
