"""What an attached process does once torch is there: it plays the role it was given."""

import atexit
import logging
import os
import random
import sys
import traceback
from typing import Any

import torch

from hotlap import compat
from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.plan import Plan
from hotlap.trial.channel import Channel, Config

log = logging.getLogger("hotlap")

EXIT_STOPPED = 0
EXIT_FAILED = 97
"""Exit code of a trial in which hotlap itself failed; the reason went over the channel."""


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


def _roles() -> dict[str, type[RunRole]]:
    from hotlap.attach.capture import VerifyRole
    from hotlap.attach.observe import ObserveRole
    from hotlap.attach.replay import ReferenceRole
    from hotlap.attach.turns import RaceRole

    return {
        "run": RunRole,
        "observe": ObserveRole,
        "race": RaceRole,
        "verify": VerifyRole,
        "reference": ReferenceRole,
    }


def start(config: Config, channel: Channel) -> None:
    """Begin the session. A run that cannot begin goes on as the plain script, and says so."""
    try:
        _start(config, channel)
    except Exception as error:
        seams.go_inert()
        channel.send("failed", error=str(error), traceback=traceback.format_exc())
        if config.role != "run":
            os._exit(EXIT_FAILED)
        print(f"hotlap: the plan could not be applied, running plain: {error}", file=sys.stderr)  # noqa: T201


def _start(config: Config, channel: Channel) -> None:
    # A script that logs to its own standard output must not find our lines there.
    log.propagate = False
    log.addHandler(logging.NullHandler())
    plan = Plan(config.plan)
    absent = compat.missing()
    if absent:
        names = ", ".join(f"{name.module}.{name.path}" for name in absent)
        raise RuntimeError(f"this torch ({torch.__version__}) lacks {names}")
    if config.inject_seed is not None:
        _seed(config.inject_seed)
    in_process = PlanInProcess(plan, extra=config.techniques, fill_ahead=config.fill_ahead)
    kind = RunRole if config.role == "run" else _roles()[config.role]
    role = kind(config, channel, in_process)
    seams.install(role)
    in_process.start()
    atexit.register(role.finish)
    channel.send("torch", version=torch.__version__, threads=torch.get_num_threads())


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    import numpy

    numpy.random.seed(seed)
