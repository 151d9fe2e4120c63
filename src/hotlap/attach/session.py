"""What an attached process does once torch is there: it plays the role it was given."""

import atexit
import logging
import os
import random
import sys
import traceback

import torch

from hotlap import compat
from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.roles.run import RunRole
from hotlap.plan import Plan
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_FAILED, Config

log = logging.getLogger("hotlap")


def _roles() -> dict[str, type[RunRole]]:
    from hotlap.attach.roles.observe import ObserveRole
    from hotlap.attach.roles.race import RaceRole
    from hotlap.attach.roles.reference import ReferenceRole
    from hotlap.attach.roles.verify import VerifyRole

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
