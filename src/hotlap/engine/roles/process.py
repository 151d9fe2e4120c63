"""A trial of a recipe, from inside: `python -m hotlap.engine.roles.process RECIPE [ARGS]`.

Whoever started it says through the environment which role it plays: the same roles, over the same
channel, as an unedited script that hotlap has attached to.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from hotlap.engine.build import Built, build
from hotlap.engine.run import steps_of
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.recipe import load
from hotlap.task import Task
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import ENVIRONMENT, EXIT_CUT, EXIT_STOPPED, IN_TRIAL, Config
from hotlap.trial.turns import Turns


@dataclass(frozen=True)
class Trial:
    """What a role works with."""

    config: Config
    channel: Channel
    task: Task

    def build(self, task: Task, plan: Plan | None = None) -> Built:
        """Make a run of the task, under the trial's own plan if none is given."""
        return build(
            task,
            Plan(self.config.plan) if plan is None else plan,
            device=self.config.options.get("device"),
            fill_ahead=self.config.fill_ahead,
            techniques=self.config.techniques,
        )

    def report(self, built: Built | None, *, steps: int, ended: str = "limit", **more: Any) -> None:
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


def race(trial: Trial) -> None:
    """Train as many steps a turn as told, for as long as there are turns.

    The first step is taken before the gate: it fills the feed and compiles. A task that comes to
    its end is gone through again, at the rate that its schedule ended with.
    """
    built = trial.build(trial.task)
    started = trial.config.options["started"]
    turns = Turns(trial.channel, started, built.applied.proofs, leave)
    while True:
        for _ in steps_of(built):
            if turns.is_open:
                turns.step_done()
            else:
                turns.gate()
        built.scheduler = None


def _roles() -> dict[str, Callable[[Trial], None]]:
    from hotlap.engine.roles import proof, watch

    return {
        "race": race,
        "observe": watch.observe,
        "verify": proof.verify,
        "reference": proof.reference,
        "seeds": proof.seeds,
    }


def main(argv: Sequence[str]) -> None:
    """Play the role that the environment says, with the recipe and the arguments that were given.

    Whatever the recipe raises ends the process as it would end `hotlap train`.
    """
    text = os.environ.pop(ENVIRONMENT, None)
    if text is None:
        raise SystemExit("hotlap starts this itself. Allowed: `hotlap tune RECIPE [ARGS]`.")
    config = Config.from_text(text)
    if config.fd is not None:
        # It was inherited once; a worker process would keep it open.
        os.set_inheritable(config.fd, False)
    channel = Channel(config.fd, lost=lambda: os._exit(EXIT_CUT))
    os.register_at_fork(after_in_child=channel.close)
    channel.send("attached", python=sys.version.split()[0], executable=sys.executable)
    channel.send("torch", version=torch.__version__, threads=torch.get_num_threads())
    # A recipe that tunes itself when it is imported would do so without end.
    os.environ[IN_TRIAL] = "1"
    trial = None
    try:
        # Until this process ends: whatever the recipe imports later reads its own command line.
        sys.argv = list(argv)
        trial = Trial(config, channel, load(argv[0]).task(argv[1:]))
        _roles()[config.role](trial)
    except UsageError as error:
        (trial or Trial(config, channel, None)).refuse(error)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(sys.argv[1:])
