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
from dataclasses import dataclass

from hotlap.failures.death import Death
from hotlap.failures.memory_words import advise_half, say_where
from hotlap.failures.record import Failure
from hotlap.failures.sizes import SIZE, find_size, in_words

_FRAGMENTED = 0.1
"""Share of what the process holds that is reserved for nothing."""
_ANOTHERS = 0.2
"""Share of the device that others hold."""


@dataclass(frozen=True)
class _Figures:
    """What a message says, in bytes; None where it does not."""

    asked: float | None
    total: float | None
    free: float | None
    own: float | None
    tensors: float | None
    cached: float | None

    @property
    def others(self) -> float:
        if self.total is None or self.free is None or self.own is None:
            return 0.0
        return self.total - self.free - self.own

    @property
    def is_in_pieces(self) -> bool:
        """True if enough is reserved for nothing, but in pieces that are too small."""
        if self.asked is None or self.tensors is None or self.cached is None:
            return False
        return self.cached > max(self.asked, _FRAGMENTED * (self.tensors + self.cached))

    @property
    def needed(self) -> float | None:
        """What would have been needed at least, if live tensors are what fills the memory."""
        if self.asked is None or self.tensors is None or self.cached is None or self.is_in_pieces:
            return None
        return self.tensors + self.asked


def _read(text: str) -> _Figures:
    tensors = find_size(rf"{SIZE} is allocated by PyTorch", text) or find_size(
        rf"{SIZE} already allocated", text
    )
    cached = find_size(rf"{SIZE} is reserved by PyTorch but unallocated", text)
    if cached is None and tensors is not None:
        reserved = find_size(rf"{SIZE} reserved in total", text)
        cached = None if reserved is None else reserved - tensors
    own = find_size(rf"this process has {SIZE}", text)
    if own is None and tensors is not None and cached is not None:
        own = tensors + cached
    return _Figures(
        asked=find_size(rf"[Tt]ried to allocate {SIZE}", text),
        total=find_size(rf"total capacity of {SIZE}", text)
        or find_size(rf"{SIZE} total capacity", text),
        free=find_size(rf"of which {SIZE} is free", text) or find_size(rf"{SIZE} free", text),
        own=own,
        tensors=tensors,
        cached=cached,
    )


def explain(match: "re.Match[str]") -> list[str]:
    seen = _read(match.group())
    said = []
    if seen.asked is not None and seen.free is not None and seen.total is not None:
        said.append(
            f"{in_words(seen.asked)} were asked for in one piece; {in_words(seen.free)} of "
            f"{in_words(seen.total)} were free."
        )
    if seen.total is not None and seen.others > _ANOTHERS * seen.total:
        said.append(
            f"Other processes hold about {in_words(seen.others)} of the GPU: look at `nvidia-smi` "
            "first."
        )
    if seen.cached is not None and seen.is_in_pieces:
        said.append(
            f"{in_words(seen.cached)} are reserved and not in use, more than was asked for, but in "
            "pieces: set PYTORCH_ALLOC_CONF=expandable_segments:True before the script starts."
        )
    if seen.tensors is not None and seen.needed is not None:
        said.append(
            f"Live tensors hold {in_words(seen.tensors)}: at least {in_words(seen.needed)} would "
            "have been needed."
        )
    return said


def advise(match: "re.Match[str]", death: Death) -> list[str]:
    if _read(match.group()).needed is None:
        return advise_half(death)
    return ["Halve the micro-batch, and accumulate twice as many of them.", *advise_half(death)]


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
    advise=advise,
    locate=locate,
)
