"""The role of a run under a plan; the others build on it."""

import os
import sys
from typing import Any

from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_STOPPED, Config


class RunRole(seams.Listener):
    """Applies the plan and, at the end, says what took effect. The other roles build on it."""

    def __init__(self, config: Config, channel: Channel, plan: PlanInProcess) -> None:
        self.config = config
        self.channel = channel
        self.plan = plan
        self.wants_roots = plan.wants("model")
        self.steps = 0
        self._pid = os.getpid()
        self._finished = False

    def iterator_wanted(self, loader: Any) -> None:
        self.plan.iterator_wanted(loader)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        self.plan.iterator_made(loader, iterator)

    def root_wanted(self, module: Any) -> bool:
        trained = {
            id(parameter)
            for optimizer in seams.known_optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        if not any(id(parameter) in trained for parameter in module.parameters()):
            return False
        self.plan.root_found(module)
        self.root_found(module)
        return True

    def root_found(self, module: Any) -> None:
        """A module that an optimizer trains is about to run for the first time."""

    def step_begins(self, optimizer: Any) -> None:
        self.plan.step_begins(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        del optimizer
        self.plan.step_ends()
        self.steps += 1
        if self.steps == 1:
            seams.stop_looking_for_roots()

    def step_failed(self, optimizer: Any) -> None:
        self.plan.step_failed(optimizer)

    def report(self) -> dict[str, Any]:
        """Return what the role has to say at its end."""
        return {}

    def finish(self, ended: str = "script") -> None:
        """Send the report, once, from the process that was attached to."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        self.channel.send(
            "report",
            ended=ended,
            steps=self.steps,
            techniques=self.plan.proofs() if self.steps else [],
            **self.report(),
        )

    def stop(self) -> None:
        """End this trial here and now: no clean-up of the script's may run, nothing is saved."""
        self.finish("limit")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_STOPPED)
