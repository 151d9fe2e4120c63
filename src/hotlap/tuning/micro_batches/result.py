"""`MicroBatch`: the largest and the fastest micro-batch of a recipe under a limit of memory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.tuning.micro_batches.search import Fit


@dataclass(frozen=True)
class MicroBatch:
    """What trials found."""

    batch: int
    """Samples of a step."""
    device: str
    limit_bytes: int
    """What it had to fit into."""
    largest: int
    """Most samples of a micro-batch that fit."""
    fastest: int
    """Samples of the micro-batch that trains most samples a second."""
    speedup: float | None
    """How many times as many samples a second these are as with the largest; None if the largest
    was not timed, for want of memory between turns for one."""
    trials: tuple[Fit, ...]
    """In the order of their sizes."""
    rates: Mapping[int, float]
    """Samples per second by size, of those that were timed."""
    own: int
    """Samples of a micro-batch as the task has them."""
    why_whole: str = ""
    """Why steps are not split, where they cannot be."""
    is_kept: bool = False
    """True if all of it was measured in an earlier run."""

    @property
    def peak_bytes(self) -> int:
        """What was held at once with the largest micro-batch that fits."""
        return next(each.peak_bytes for each in self.trials if each.size == self.largest)

    def plan(self, plan: Plan | None = None) -> Plan:
        """Return a plan, with the fastest micro-batch in it."""
        return with_micro_batch(plan or Plan(), self.fastest, self.batch, self.own)

    def to_json(self) -> dict[str, Any]:
        """Return it as `hotlap train --json` prints it."""
        return {
            "batch": self.batch,
            "device": self.device,
            "limit_bytes": self.limit_bytes,
            "largest": self.largest,
            "peak_bytes": self.peak_bytes,
            "fastest": self.fastest,
            "speedup": self.speedup,
            "trials": [{**asdict(each), "fits": each.fits} for each in self.trials],
            "samples_per_s": {str(size): rate for size, rate in self.rates.items()},
            "why_whole": self.why_whole or None,
            "is_kept": self.is_kept,
        }


def with_micro_batch(plan: Plan, size: int, batch: int, own: int) -> Plan:
    """Return a plan with micro-batches of so many samples.

    Args:
        plan: may name another size.
        size: samples of a micro-batch.
        batch: samples of a step.
        own: samples of a micro-batch as the task has them.

    Raises:
        UsageError: a step does not have so many samples.
    """
    if size > batch:
        raise UsageError(
            f"--micro-batch {size} is larger than a step of {batch} samples. Expected: 1 to "
            f"{batch}, or auto."
        )
    if size == batch == own:
        return plan.without("micro_batch")
    return plan.with_technique("micro_batch", size=size)


def size_given(text: str) -> int | None:
    """Return the samples that `--micro-batch` was given, None for `auto`.

    Raises:
        UsageError: it is neither.
    """
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(
            f"--micro-batch {text} is not valid. Expected: auto, or a number of samples, 1 or more."
        )
    return int(text)
