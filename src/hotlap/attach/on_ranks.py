"""One of a script's ranks: techniques refused there, DDP's log of its sums, size of its group."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.compat import find_optional
from hotlap.techniques import Numerics, Technique


def why_not(technique: Technique, options: Any) -> str | None:
    """Return why a technique is not used on ranks of a script, None if it is."""
    name, seam = technique.name, technique.seam_of(options)
    if seam in ("model", "step"):
        return (
            f"technique `{name}` changes the model's modules, which DistributedDataParallel has "
            f"already wrapped. Use a plan without `{name}`, or train in one process."
        )
    if not technique.on_ranks:
        return (
            f"technique `{name}` cannot be used where several processes (ranks) train one model. "
            f"Use a plan without `{name}`, or train in one process."
        )
    moves_bits = technique.numerics(options) not in (Numerics.EXACT, Numerics.CHANGES)
    if seam == "optimizer" and moves_bits:
        # One rank that refused it alone would drift away from the others, and nobody would see.
        return (
            f"technique `{name}` with {options} rounds updates differently than the script's "
            "optimizer, but all ranks must make bit-equal updates. Use a plan without "
            f"`{name}`, or use options that `hotlap explain {name}` calls exact."
        )
    return None


def time_sums(module: Any) -> None:
    """Let a `DistributedDataParallel` time each of its backwards, if it is one; for trials only."""
    set_rate = _of_wrapper(module, "DistributedDataParallel._set_ddp_runtime_logging_sample_rate")
    if set_rate is not None:
        set_rate(module, 1)


def exposed_ms(modules: Sequence[Any]) -> float:
    """Return how long a sum of gradients goes on when its backward is done, in ms.

    Args:
        modules: those that are trained; 0 if none of them is a `DistributedDataParallel`.
    """
    total_ns = 0
    for module in modules:
        said = read_log(module)
        sums = int(said.get("avg_backward_comm_time", 0))
        total_ns += max(0, sums - int(said.get("avg_backward_compute_comm_overlap_time", 0)))
    return total_ns / 1e6


def read_log(module: Any) -> dict[str, Any]:
    """Return what a `DistributedDataParallel` notes of its last step; nothing if it is none."""
    read = _of_wrapper(module, "DistributedDataParallel._get_ddp_logging_data")
    return {} if read is None else read(module)


def _of_wrapper(module: Any, name: str) -> Any:
    """Return a method of the wrapper's, None if the module is none, or this torch lacks it."""
    from torch.nn.parallel import DistributedDataParallel

    return find_optional(name) if isinstance(module, DistributedDataParallel) else None


def rank_in_group() -> int | None:
    """Return this process's number in its process group, None if it is in none."""
    import torch

    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank()


def ranks_in_group() -> int:
    """Return how many processes are in this one's process group, 1 if it is in none."""
    import torch

    return 1 if rank_in_group() is None else torch.distributed.get_world_size()


def tables(meeting: Path | None) -> Any:
    """Return where this rank finds the copies that it has together with others of its machine.

    Args:
        meeting: a file that all of them can write to.

    Returns:
        None if they share none: there is no such file, or the system has no memory without a name.
    """
    if meeting is None or ranks_on_machine() == 1 or not hasattr(os, "memfd_create"):
        return None
    from hotlap.feed.memory.common_rows import Tables

    return Tables(meeting)


def ranks_on_machine() -> int:
    """Return how many ranks share this machine's memory, as far as can be told: 1 or more."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    if said.isascii() and said.isdecimal():
        return max(1, int(said))
    # Of a group over several machines this is too many, and each rank takes less.
    return ranks_in_group()
