"""Advice after a run ran out of memory: micro-batches or techniques that fit by the estimate."""

import sys
from dataclasses import dataclass

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.engine.memory.estimate import Estimate, estimate
from hotlap.errors import DoesNotFit, HotlapError
from hotlap.failures.sizes import in_words
from hotlap.host.memory import available_bytes
from hotlap.plan import Plan
from hotlap.task import Task

_MARGIN = 0.9
"""Of the largest micro-batch that fits by the estimate: what it does not count needs room too."""


def room_for(device: str | None) -> int | None:
    """Return the bytes that a run may take that has not begun; None to take all of a device's."""
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(on).type != "cpu":
        return None
    if sys.platform != "linux":
        return available_bytes()
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return available_bytes()
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    return max(1, min(available_bytes(), limit - mapped))


@dataclass(frozen=True)
class Run:
    """A run that ended, as far as an estimate needs it."""

    task: Task
    plan: Plan
    device: str | None
    room: int | None
    """See `room_for`; asked before the run began."""
    techniques: tuple[str, ...] = ()

    def advise(self, error: BaseException) -> str | None:
        """Return a line on what would have fitted, None if the run did not end out of memory."""
        cause: BaseException | None = error
        seen: list[BaseException] = []
        while cause is not None and cause not in seen and not is_out_of_memory(cause):
            seen.append(cause)
            cause = cause.__cause__
        if cause is None or cause in seen:
            return None
        is_tried = isinstance(error, DoesNotFit)
        if isinstance(error, HotlapError) and not is_tried:
            # It says itself what to do: smaller micro-batches do not help an update, for one.
            return None
        try:
            found = self._estimate(self.plan, find_largest=True)
            return self._in_words(found, is_tried=is_tried)
        except HotlapError as why:
            return f"no estimate of what would have fitted: {why}"

    def _estimate(self, plan: Plan, *, find_largest: bool) -> Estimate:
        return estimate(
            self.task,
            plan,
            device=self.device,
            memory_bytes=self.room,
            find_largest=find_largest,
            techniques=self.techniques,
        )

    def _in_words(self, found: Estimate, *, is_tried: bool) -> str:
        """Say what would fit; smaller micro-batches only if they were not tried in vain."""
        room = in_words(found.memory_bytes)
        line = f"by the estimate, a step as planned needs about {in_words(found.needed_bytes)}"
        if found.fits:
            return (
                f"{line} of {room}, which fits: the rest is not in the estimate, as what the loss "
                "keeps from step to step, an evaluation, the data set or another process. See "
                "`hotlap train --estimate`"
            )
        answers = [self._split(found)] if not is_tried and self._split_size(found) else []
        for row in found.rows:
            changed = row.precision != "fp32" or row.recompute != "none"
            if changed and row.peak is not None and row.peak.bytes <= found.memory_bytes:
                answers.append(f"{row.name} would need about {in_words(row.peak.bytes)} of {room}")
        if not answers:
            return (
                f"{line} of {room}, and neither smaller micro-batches, recompute nor a lower "
                "precision makes it fit: use a smaller model, or an optimizer with less state"
            )
        return f"{line} of {room}. " + "; ".join(answers)

    def _split_size(self, found: Estimate) -> int:
        """Return the size of a micro-batch that fits, 0 if there is none below the batch."""
        most = int((found.chosen.largest_batch or 0) * _MARGIN)
        size = 1 << (most.bit_length() - 1) if most else 0
        return size if size < found.batch else 0

    def _split(self, found: Estimate) -> str:
        size = self._split_size(found)
        plan = Plan({**self.plan.techniques, "micro_batch": {"size": size}})
        needed = self._estimate(plan, find_largest=False).needed_bytes
        return (
            f"micro_batch(size={size}) would need about {in_words(needed)} of "
            f"{in_words(found.memory_bytes)}"
        )
