"""Parses command lines of torchrun and `accelerate launch`: options, and the script they start."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

TORCHRUN = "torch.distributed.run"
"""The module that the command `torchrun` is."""
ACCELERATE = "accelerate.commands.launch"
"""The module that the command `accelerate launch` is."""
COMMANDS: Mapping[tuple[str, ...], str] = {
    ("torchrun",): TORCHRUN,
    ("accelerate", "launch"): ACCELERATE,
}
"""Words of a launcher's command -> its module."""
_FLAGS: Mapping[str, frozenset[str]] = {
    TORCHRUN: frozenset(
        ("--standalone", "--no-python", "--run-path", "--module", "-m", "--virtual-local-rank")
    ),
    ACCELERATE: frozenset(
        (
            *("--quiet", "-q", "--cpu", "--multi-gpu", "--tpu", "--tpu-cluster"),
            *("--no-tpu-cluster", "--tpu-use-sudo", "--use-deepspeed", "--use-fsdp"),
            *("--use-parallelism-config", "--use-megatron-lm", "--enable-cpu-affinity"),
            *("--dynamo-use-fullgraph", "--dynamo-use-dynamic", "--same-network", "--debug"),
            *("--dynamo-use-regional-compilation", "--downcast-bf16", "--no-python"),
            *("--fp8-use-autocast-during-eval", "--module", "-m"),
        )
    ),
}
"""Options without a value, with dashes for underscores; all others have one."""


class Launched(NamedTuple):
    """What the ranks run."""

    name: str
    is_script: bool
    """False for a module, and for a command."""
    words: tuple[str, ...] = ()
    """The command behind Python, as in `-m pkg.train --epochs 3`; empty for another program."""


def launched(args: Sequence[str], launcher: str | None = TORCHRUN) -> Launched | None:
    """Return what a launcher would start with these arguments, None if it would start nothing.

    Args:
        args: behind the launcher's name.
        launcher: its module; of None nothing is known.

    >>> launched(["--nproc_per_node", "2", "ddp.py", "--epochs", "3"]).words
    ('ddp.py', '--epochs', '3')
    """
    if launcher is None:
        return None
    before: tuple[str, ...] = ()
    is_python, position = True, 0
    while position < len(args):
        word = args[position]
        if not word.startswith("-"):
            words = (*before, *args[position:]) if is_python else ()
            return Launched(word, is_python and not before, words)
        name, equals, _ = word.replace("_", "-").partition("=")
        if name in ("-m", "--module"):
            before = ("-m",)
        is_python = is_python and name != "--no-python"
        # `-r3` and `-t3` hold their value.
        holds_value = bool(equals) or (not name.startswith("--") and len(name) > 2)
        position += 1 if name in _FLAGS[launcher] or holds_value else 2
    return None


def ranks_wanted(args: Sequence[str]) -> int:
    """Return how many processes `accelerate launch` is asked for, 1 if it is not said.

    >>> ranks_wanted(["--num_processes=2", "train.py"])
    2
    """
    for word, following in zip(args, (*args[1:], ""), strict=True):
        name, equals, value = word.replace("_", "-").partition("=")
        if name == "--num-processes":
            text = value if equals else following
            return int(text) if text.isdecimal() else 1
    return 1


def split_command(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the launcher's module and its arguments, None if the words begin with no launcher.

    >>> split_command(["accelerate", "launch", "--cpu", "train.py"])
    ('accelerate.commands.launch', ('--cpu', 'train.py'))
    """
    for command, module in COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            return module, tuple(words[len(command) :])
    return None
