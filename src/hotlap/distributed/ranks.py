"""`Ranks`: which of several processes this one is, as whoever started it says."""

from collections.abc import Mapping
from dataclasses import dataclass

from hotlap.errors import UsageError

STORE = "HOTLAP_RANK_STORE"
"""Variable with the file in which ranks that `hotlap` started on one machine find each other."""
RESTARTS = "HOTLAP_RANK_RESTARTS"
"""Variable with how often the ranks that `hotlap` started have been started again."""
LOST = "this rank cannot continue"
"""Words of a rank that ended as another one was gone, did not join, or did not answer."""
TIMEOUT_S = 300.0
"""Seconds after which a rank that waits for another one gives up."""

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")


@dataclass(frozen=True)
class Ranks:
    """One of the processes of a run."""

    rank: int = 0
    """Its number, from 0."""
    world: int = 1
    """How many there are."""
    local_rank: int = 0
    """Its number among those of its machine."""
    local_world: int = 1
    """How many there are on its machine."""


ALONE = Ranks()


def detect_ranks(environ: Mapping[str, str]) -> Ranks:
    """Return what the variables of `hotlap`, torchrun or Slurm's `srun` say; alone without them.

    Raises:
        UsageError: they are not numbers, or not those of one of the processes.
    """
    for names in (_TORCHRUN, _SLURM):
        # A task that Slurm started alone, and a shell within an allocation, are no ranks.
        if names[0] in environ and environ.get(names[1], "1") != "1":
            return _read(environ, names)
    return ALONE


def _read(environ: Mapping[str, str], names: tuple[str, ...]) -> Ranks:
    defaults = (None, None, environ[names[0]], environ[names[1]])
    found = []
    for name, default in zip(names, defaults, strict=True):
        text = environ.get(name, default) or ""
        if not (text.isascii() and text.isdigit()):
            raise UsageError(
                f"the environment variable {name} is '{text}'. Expected: a whole number, as "
                "torchrun and Slurm set it."
            )
        found.append(int(text))
    ranks = Ranks(*found)
    if ranks.rank >= ranks.world:
        raise UsageError(
            f"the environment variable {names[0]} is {ranks.rank}, but {names[1]} is "
            f"{ranks.world}. Expected: {names[0]} from 0 to {ranks.world - 1}. Set both correctly, "
            "or start the ranks with `torchrun`, which sets them."
        )
    return ranks
