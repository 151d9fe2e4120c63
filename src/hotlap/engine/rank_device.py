"""Ranks meet, each on a device of its own, which is the current one for it meanwhile."""

import contextlib
from collections.abc import Iterator

import torch

from hotlap.device.accelerator import device_of
from hotlap.distributed.own_group import ranks_here
from hotlap.distributed.ranks import Ranks
from hotlap.distributed.reduce import Reduce, joined


@contextlib.contextmanager
def joined_on_device(
    device: str | None, *, timeout_s: float, overlaps: bool
) -> Iterator[tuple[Reduce, str | None]]:
    """Give the `Reduce` of this process, and the name of its device; see `joined`.

    Args:
        device: that was asked for.
        timeout_s: after which a rank that waits for another one gives up.
        overlaps: see `Reduce`.
    """
    ranks = ranks_here()
    with own_device(device, ranks) as name:
        is_cuda = ranks.world > 1 and device_of(name).kind == "cuda"
        with joined(ranks, is_cuda=is_cuda, timeout_s=timeout_s, overlaps=overlaps) as reduce:
            yield reduce, name


@contextlib.contextmanager
def own_device(device: str | None, ranks: Ranks) -> Iterator[str | None]:
    """Give the name of this process's device, which is the current one while it is used.

    What asks for no device in particular, as `tensor.cuda()` and pinned memory do, would otherwise
    be on the machine's first device.

    Args:
        device: that was asked for.
        ranks: which rank this process is.
    """
    name = name_of_device(device, ranks)
    is_first = ranks.world == 1 and (name is None or ":" not in name)
    if is_first or device_of(name).kind != "cuda":
        yield name
        return
    with torch.cuda.device(name):
        yield name


def name_of_device(device: str | None, ranks: Ranks) -> str | None:
    """Return the device of one of several ranks: each has its own, where there are several."""
    if ranks.world > 1 and device in (None, "cuda") and device_of(device).kind == "cuda":
        # Slurm may show each task no device but its own.
        return f"cuda:{ranks.local_rank if torch.cuda.device_count() > 1 else 0}"
    return device
