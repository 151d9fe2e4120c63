"""torchrun's command line: which of its words is the script that its ranks run."""

from collections.abc import Sequence
from dataclasses import dataclass

TORCHRUN = "torch.distributed.run"
"""The module that the command `torchrun` is."""
_FLAGS = frozenset(
    ("--standalone", "--no-python", "--run-path", "--module", "-m", "--virtual-local-rank")
)
"""Options without a value; all others have one."""


@dataclass(frozen=True)
class Launched:
    """What the ranks run."""

    name: str
    is_script: bool
    """False for a module, and for a command."""


def launched(args: Sequence[str]) -> Launched | None:
    """Return what torchrun would start with these arguments, None if it would start nothing.

    >>> launched(["--nproc_per_node", "2", "ddp.py", "--epochs", "3"])
    Launched(name='ddp.py', is_script=True)
    """
    is_script, position = True, 0
    while position < len(args):
        word = args[position]
        if not word.startswith("-"):
            return Launched(word, is_script)
        name, equals, _ = word.replace("_", "-").partition("=")
        if name in ("-m", "--module", "--no-python"):
            is_script = False
        # `-r3` and `-t3` hold their value.
        holds_value = bool(equals) or (not name.startswith("--") and len(name) > 2)
        position += 1 if name in _FLAGS or holds_value else 2
    return None
