"""The process group that the user's own code has made: which rank this is, and what it can sum."""

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from hotlap.distributed.ranks import Ranks, check_mpi, detect_ranks
from hotlap.errors import UsageError


def is_joined() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def ranks_here(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Return which rank this process is: of the group that it is in, else as it was started.

    A group that was made without the variables of a launcher, as under `mp.spawn`, is believed to
    have a rank for each device of a machine; without devices, to be on one machine.

    Raises:
        UsageError: the variables of a launcher cannot be right, or those of mpirun do not suffice.
    """
    named = detect_ranks(environ)
    if not is_joined():
        check_mpi(environ)
        return named
    rank, world = dist.get_rank(), dist.get_world_size()
    if named.world == world:
        return Ranks(rank, world, named.local_rank, named.local_world)
    here = min(world, torch.cuda.device_count() or world)
    return Ranks(rank, world, rank % here, here)


def check_backends() -> None:
    """Raise UsageError if the group has no back end for tensors on the CPU.

    What the hosts decide by, such as losses and votes, goes between them, not between devices.
    """
    backends = dist.get_backend_config()
    if "cpu:" in backends:
        return
    raise UsageError(
        f"the process group of this script has the back ends '{backends}', and none for tensors "
        "on the CPU, through which ranks agree on each step. Call init_process_group with "
        "backend='cpu:gloo,cuda:nccl', or remove the call: hotlap.train makes the group then, if "
        "RANK and WORLD_SIZE are set."
    )
