"""Batches are read, decoded and transformed by threads, ahead of the training loop.

What it does   some threads of the training process make whole batches, each one batch at a time,
               while the model computes; batches are handed over in their order.
When it helps  most of a sample's time is spent in code that releases Python's lock: decoding and
               resizing of larger images, reading of files, operations on larger tensors. Beside
               `resident`, threads read together in the first epoch and transform in all of them.
When it hurts  small samples: what is left is Python, of which one thread runs at a time, so that
               the training loop itself gets slower. Worker processes are faster there. That
               threads never help in Python is wrong as well: Pillow, numpy and torch let go of the
               lock while they compute.
Numerics       exact: what a transform draws follows from seed, epoch and sample. A data set that
               draws from the process's random states is refused, and so are a `transform(sample)`
               of one argument, and a data set that gives other samples when several threads read
               at once; some samples are looked at each epoch, and a data set found to
               draw later ends the run with an error.
Measured       benchmarks/results/2026-11-21_engine_amd-epyc-2-cores.md: images of 32 x 32 pixels on
               two cores, 0.69 times as fast as without (0.67 to 0.71), so small images lose. Of
               the CPU time of such a sample Pillow's decoder takes a third (66 of 195 us), and the
               rest holds the lock; threads add a fifth to it. So it is used only where `tune` raced
               it on this host, or where a plan written by hand says so.
Source         Pillow's decoders release the lock (src/decode.c); SPDL, arXiv 2504.20067.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.task import is_stream
from hotlap.techniques.record import FeedTarget, Numerics, Proof, Refusal, Technique

_SCRIPT = (
    "the DataLoader of a script cannot read with threads. Use `hotlap train` with a recipe, or "
    "replace [techniques.reader_threads] in the plan by [techniques.workers] with `count = N`."
)


@dataclass(frozen=True)
class Options:
    count: int
    """Threads that read the training data."""
    prefetch: int = 2
    """Batches that each thread keeps ready."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 256:
            raise ValueError(f"count={self.count} is not allowed. Expected: 1 to 256.")
        if not 1 <= self.prefetch <= 64:
            raise ValueError(f"prefetch={self.prefetch} is not allowed. Expected: 1 to 64.")


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    from hotlap.feed.purity.reach import Reach

    loader = target.loader
    if not target.own_order:
        raise Refusal(_SCRIPT)
    if loader.num_workers > 0:
        raise Refusal(
            f"{loader.num_workers} worker processes of `workers` read the samples already, so "
            "threads cannot read them too. Remove [techniques.workers] from the plan to read with "
            "threads, or [techniques.reader_threads] to read with worker processes."
        )
    if is_stream(loader.dataset):
        raise Refusal(
            f"{type(loader.dataset).__name__} is an iterable dataset, from which threads cannot "
            "read samples by index. In the plan, replace [techniques.reader_threads] by "
            "[techniques.workers] with `count = N`."
        )
    problem = Reach(loader.dataset).problem
    if problem is not None:
        raise Refusal(
            f"{problem}, so it is not certain that several threads read the same samples. Use a "
            "plan without reader_threads, or change the dataset so that this is no longer so."
        )
    loader.reader_threads = options.count
    loader.prefetch_factor = options.prefetch
    return target


def proof(target: FeedTarget, options: Options) -> Proof:
    notes = target.notes.get("reader_threads")
    if notes is None:
        return Proof("no_effect", "no epoch was started")
    made = f"{notes['batches']} batches made by {options.count} threads"
    if notes["refused"] is not None:
        return Proof("refused", f"{notes['refused']} ({made} before)")
    return Proof("applied", made)


def candidates(host: Any) -> tuple[Mapping[str, Any], ...]:
    return ({"count": max(1, int(host.cores))},)


TECHNIQUE = Technique(
    name="reader_threads",
    seam="feed",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=lambda: _SCRIPT,
    apply=apply,
    proof=proof,
    candidates=candidates,
    needs_race=True,
    on_ranks=True,
)
