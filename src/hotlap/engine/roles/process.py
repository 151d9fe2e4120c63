"""Process of a recipe's trial: `python -m hotlap.engine.roles.process RECIPE [ARGS]`.

Whoever started it says through the environment which role it plays: the same roles, over the same
channel, as an unedited script that hotlap has attached to.
"""

import os
import sys
from collections.abc import Callable, Sequence

import torch

from hotlap.engine.roles.trial import Trial
from hotlap.errors import UsageError
from hotlap.recipe import load
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import ENVIRONMENT, EXIT_CUT, IN_TRIAL, Config
from hotlap.trial.stack import write_stack_when_asked


def _roles() -> dict[str, Callable[[Trial], None]]:
    from hotlap.engine.roles import (
        count,
        memory,
        micro_batches,
        observe,
        profile,
        race,
        reference,
        verify,
    )

    return {
        "race": race.race,
        "observe": observe.observe,
        "verify": verify.verify,
        "reference": reference.reference,
        "seeds": reference.seeds,
        "fit": micro_batches.fit,
        "pace": micro_batches.pace,
        "memory": memory.memory,
        "count": count.count,
        "profile": profile.profile,
    }


def main(argv: Sequence[str]) -> None:
    """Play the role that the environment says, with the recipe and the arguments that were given.

    Whatever the recipe raises ends the process as it would end `hotlap train`.
    """
    text = os.environ.pop(ENVIRONMENT, None)
    if text is None:
        raise SystemExit("hotlap starts this module itself. Use `hotlap tune RECIPE [ARGS]`.")
    config = Config.from_text(text)
    channel = Channel.connect(config.address, lost=lambda: os._exit(EXIT_CUT))
    os.register_at_fork(after_in_child=channel.close)
    about = {"python": sys.version.split()[0], "executable": sys.executable, "pid": os.getpid()}
    if not channel.send("attached", **about):
        os._exit(EXIT_CUT)
    write_stack_when_asked(config.stack_file)
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
