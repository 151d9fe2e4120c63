"""A GPU's memory does not suffice for what a step holds at once.

What happened  torch asked the driver for one more block, gave back all that it had cached, and
               asked again. The line in the traceback is where memory ran out, seldom what fills it.
What fills it  weights, their gradients, the optimizer's state (Adam: two more copies), and the
               activations that the backward pass needs. Only these grow with the batch size.
What to do     in this order: smaller micro-batches, as many more of them (technique `micro_batch`:
               the same update); recompute activations in the backward pass (`recompute`); reduced
               precision (`autocast`); evaluate under `torch.no_grad()`; keep numbers, not losses
               (`total += loss.item()`). `PYTORCH_ALLOC_CONF=expandable_segments:True` where much is
               reserved and not allocated. `torch.cuda.empty_cache()` frees nothing that is in use:
               see `empty_cache`. `hotlap diagnose --memory SCRIPT` shows what the memory is used
               for; `hotlap train RECIPE --estimate` what a recipe would need.
Who else       `nvidia-smi` lists the processes on the GPU: a run that was killed may still hold it,
               and a notebook does until its kernel is restarted.
"""

import re

from hotlap.failures.death import Death
from hotlap.failures.memory_words import say_where
from hotlap.failures.record import Failure
from hotlap.failures.sizes import SIZE, find_size, in_words

_FRAGMENTED = 0.1
"""Share of what the process holds that is reserved for nothing."""
_ANOTHERS = 0.2
"""Share of the device that others hold."""


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    asked = find_size(rf"[Tt]ried to allocate {SIZE}", text)
    total = find_size(rf"total capacity of {SIZE}", text) or find_size(
        rf"{SIZE} total capacity", text
    )
    free = find_size(rf"of which {SIZE} is free", text) or find_size(rf"{SIZE} free", text)
    own = find_size(rf"this process has {SIZE}", text)
    tensors = find_size(rf"{SIZE} is allocated by PyTorch", text) or find_size(
        rf"{SIZE} already allocated", text
    )
    cached = find_size(rf"{SIZE} is reserved by PyTorch but unallocated", text)
    if cached is None and tensors is not None:
        reserved = find_size(rf"{SIZE} reserved in total", text)
        cached = None if reserved is None else reserved - tensors
    said = []
    if asked is not None and free is not None and total is not None:
        said.append(
            f"{in_words(asked)} were asked for in one piece; {in_words(free)} of "
            f"{in_words(total)} were free."
        )
    if own is None and tensors is not None and cached is not None:
        own = tensors + cached
    others = 0.0 if None in (total, free, own) else total - free - own  # type: ignore[operator]
    if total is not None and others > _ANOTHERS * total:
        said.append(
            f"Other processes hold about {in_words(others)} of the GPU: look at `nvidia-smi` first."
        )
    if tensors is None or cached is None or asked is None:
        return said
    if cached > asked and cached > _FRAGMENTED * (tensors + cached):
        said.append(
            f"{in_words(cached)} are reserved and not in use, more than was asked for, but in "
            "pieces: set PYTORCH_ALLOC_CONF=expandable_segments:True before the script starts."
        )
    else:
        said.append(
            f"Live tensors hold {in_words(tensors)}: at least {in_words(tensors + asked)} would "
            "have been needed. Halve the micro-batch, and accumulate twice as many of them."
        )
    return said


def locate(death: Death) -> list[str]:
    return say_where(death, "cuda")


FAILURE = Failure(
    name="cuda_out_of_memory",
    patterns=(
        r"(?:CUDA|HIP|XPU) out of memory\.(?:[^\n]*)",
        r"(?:CUDA|HIP) error: out of memory",
        r"CUDA_ERROR_OUT_OF_MEMORY",
    ),
    explain=explain,
    locate=locate,
)
