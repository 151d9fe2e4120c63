"""Batches go to a GPU from pinned memory, ahead of their step, on a stream of their own.

What it does   copies each batch into pinned host memory in a thread, and from there to the device
               on a side stream, while the step before it computes. Samples are read as before, in
               their order and by the same thread or workers.
When it helps  batches that are large against the step: a copy from pageable memory makes the host
               wait, and the device with it.
When it hurts  small batches, where the thread costs more than the copy; a data set that fits on the
               device is better there (`resident`). Beliefs to correct: on a CPU pinned memory does
               nothing; more of it is not better, because the system can no longer move or swap it
               (hence `max_mib`); and `non_blocking=True` from memory that is not pinned still
               waits.
Numerics       exact: the same bytes in the same order.
Measured       in a plan for GPT-2 124M: benchmarks/results/2026-11-27_gpu_h200.md
Source         CUDA C++ programming guide, asynchronous copies; PyTorch tutorial on `pin_memory`.
"""

from dataclasses import dataclass

from hotlap.task import TaskFacts
from hotlap.techniques.record import FeedTarget, Numerics, Proof, Refusal, Technique

_NO_DEVICE = (
    "no CUDA device trains the model, so batches stay on the host. Train on a CUDA GPU to use "
    "`pinned`, or use a plan without it."
)


@dataclass(frozen=True)
class Options:
    ahead: int = 2
    """Steps whose batches are under way at once."""
    max_mib: int = 256
    """Pinned memory for each data set, in MiB. A step that needs more than its share is copied
    from where it is."""

    def __post_init__(self) -> None:
        if not 1 <= self.ahead <= 16:
            raise ValueError(f"ahead={self.ahead} is not allowed. Expected: 1 to 16.")
        if self.max_mib < 1:
            raise ValueError(f"max_mib={self.max_mib} is not allowed. Expected: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    return None if task.device.startswith("cuda") else _NO_DEVICE


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    if not target.own_order:
        raise Refusal(
            "pinned is for recipes, but this is a script, which moves its batches itself. Remove "
            "`pinned` from the plan; for a similar effect, set pin_memory=True in the script's "
            "DataLoader and non_blocking=True where it calls `.to(device)`."
        )
    if target.device is None or not target.device.can_pin:
        raise Refusal(_NO_DEVICE)
    from hotlap.feed.transfer.pinned import PinnedFeed

    feed = PinnedFeed(target.device, ahead=options.ahead, max_bytes=options.max_mib * 2**20)
    target.transfer = target.notes["pinned"] = feed
    return target


def proof(target: FeedTarget, options: Options) -> Proof:
    feed = target.notes.get("pinned")
    if feed is None or feed.pinned_steps + feed.other_steps == 0:
        return Proof(
            "no_effect", "no batch was copied: all were on the device, or none was requested"
        )
    if feed.pinned_steps == 0:
        return Proof(
            "no_effect",
            f"ahead={options.ahead} steps need more pinned memory than max_mib={options.max_mib}. "
            "Raise max_mib or lower ahead",
        )
    rest = f", {feed.other_steps} without it" if feed.other_steps else ""
    return Proof(
        "applied",
        f"{feed.pinned_steps} steps used {feed.most_bytes / 2**20:.1f} MiB of pinned memory{rest}",
    )


TECHNIQUE = Technique(
    name="pinned",
    seam="feed",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    on_ranks=True,
)
