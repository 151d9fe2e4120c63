"""`Trial`: builds a recipe's task in its process, reports to the parent, and ends."""

import os
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from hotlap.engine.build import BuiltRun, build
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_STOPPED, Config


@dataclass(frozen=True)
class Trial:
    """What a role works with."""

    config: Config
    channel: Channel
    task: Task

    def build(self, task: Task, plan: Plan | None = None) -> BuiltRun:
        """Make a run of the task, under the trial's own plan if none is given."""
        return build(
            task,
            Plan(self.config.plan) if plan is None else plan,
            device=self.config.options.get("device"),
            fill_ahead=self.config.fill_ahead,
            techniques=self.config.techniques,
        )

    def report(
        self, built: BuiltRun | None, *, steps: int, ended: str = "limit", **more: Any
    ) -> None:
        """Send the report, and end the process: nothing of the recipe's runs after it."""
        techniques = built.applied.proofs() if built is not None and steps else []
        self.channel.send("report", ended=ended, steps=steps, techniques=techniques, **more)
        leave()

    def refuse(self, error: UsageError) -> NoReturn:
        """Say that what the user gave is wrong, and end the process."""
        self.channel.send("refused", error=str(error))
        leave()


def leave() -> NoReturn:
    """End this process here and now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_STOPPED)
