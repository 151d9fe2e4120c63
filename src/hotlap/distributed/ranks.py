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
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
"""Of what `srun` has started: a batch script, which is no rank, has `SLURM_NTASKS` as well."""
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Number of processes that mpirun has started, of several makes."""


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
    names = _named_by(environ)
    # A task that was started alone is no rank, nor is a shell within an allocation.
    if names is None or environ[names[1]] == "1":
        return ALONE
    return _read(environ, names)


def check_mpi(environ: Mapping[str, str]) -> None:
    """Raise UsageError in one of several processes of mpirun that nothing says the ranks of."""
    name = next((each for each in _MPI_SIZES if environ.get(each, "1") != "1"), None)
    if name is None or _named_by(environ) is not None:
        return
    raise UsageError(
        f"mpirun started this process as one of {environ[name]} ({name}), but RANK and WORLD_SIZE "
        "are not set, so each process would train a model of its own. Set RANK, WORLD_SIZE, "
        "LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each of them, or use `torchrun` or `hotlap "
        "train RECIPE --devices N`. To train one model in each process, set WORLD_SIZE=1 and "
        "RANK=0."
    )


def _named_by(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the variables of who started this process, the first one that says its rank."""
    known = (names for names in (_TORCHRUN, _SLURM) if names[0] in environ and names[1] in environ)
    return next(known, None)


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
