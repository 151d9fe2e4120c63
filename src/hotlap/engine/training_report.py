"""`TrainingReport`: losses and times of each epoch, and the summary of a training."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hotlap.engine.largest_batch import WarmUpBatch
from hotlap.engine.retries import Retry
from hotlap.plan import Plan


@dataclass(frozen=True)
class EpochDone:
    """One epoch, or what the run had of its last one."""

    epoch: int
    steps: int
    seconds: float
    """Training alone."""
    samples_per_s: float
    loss: float
    """Mean over the items of the steps that were taken, what the loss counts or else samples; NaN
    if none was."""
    held_out: Mapping[str, float]
    """The loss and the task's metrics on the held-out samples, empty without these."""
    left_s: float
    """Training that is still to come, at this epoch's speed; for a stream that does not say how
    long it is, with epochs as long as this one."""
    peak_memory_bytes: int
    """Most that was held at once, since the process began."""
    skipped_steps: int = 0
    """Updates of the whole run so far that were left out."""
    peak_host_memory_bytes: int = 0
    """The same on the host; equal where the model trains there."""
    padding: float | None = None
    """Share of the epoch's tokens that are padding, where the task has `lengths`."""


@dataclass(frozen=True)
class TrainingReport:
    """What a training gave."""

    model: Any
    """In evaluation mode; its parameters are those that were trained, in float32."""
    epochs: tuple[EpochDone, ...]
    steps: int
    skipped_steps: int
    seconds: float
    samples_per_s: float
    """Steady: without the first epoch, which may read what later ones have in memory. NaN if
    nothing was left to train."""
    plan: Plan
    techniques: tuple[Mapping[str, str], ...]
    peak_memory_bytes: int
    """Of tensors, where the device has memory of its own."""
    run_dir: str | None = None
    warmed: tuple[WarmUpBatch, ...] = ()
    """The largest batches, tried before the first step where the task has `lengths`."""
    retries: tuple[Retry, ...] = ()
    """Steps that ran out of memory, and were taken again."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """The loss and the task's metrics on the held-out samples at the end, empty without these."""
    is_stopped: bool = False
    """It was asked to stop, and something is left to do."""
    device_memory: Mapping[str, int] = field(default_factory=dict)
    """See `Device.memory_report`."""
    begun_step: int = 0
    """Steps of the run that were taken before: `seconds` and `epochs` say nothing of these."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON that `hotlap train --json` prints."""
        return {
            "steps": self.steps,
            "begun_step": self.begun_step,
            "stopped": self.is_stopped,
            "skipped_steps": self.skipped_steps,
            "seconds": self.seconds,
            "samples_per_s": self.samples_per_s,
            "final": {
                "loss": self.epochs[-1].loss if self.epochs else None,
                "metrics": dict(self.held_out),
            },
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "plan": self.plan.techniques,
            "plan_hash": self.plan.hash,
            "techniques": [dict(row) for row in self.techniques],
            "peak_memory_bytes": self.peak_memory_bytes,
            "device_memory": dict(self.device_memory),
            "run_dir": self.run_dir,
            "warmed": [asdict(batch) for batch in self.warmed],
            "retries": [asdict(retry) for retry in self.retries],
        }
