"""`--micro-batch` of `hotlap train`: a number of samples, or `auto`, which finds it by trials."""

import os
from dataclasses import dataclass
from typing import Any

from hotlap.cli.starting import say
from hotlap.distributed.ranks import detect_ranks
from hotlap.errors import UsageError
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun
from hotlap.plan import Plan


@dataclass(frozen=True)
class MicroBatchRequest:
    """What the command line asks for.

    Raises:
        UsageError: the options do not go together, or the number is none.
    """

    given: str | None
    """None without the option."""
    memory: str | None
    again: bool
    estimates: bool
    """True with `--estimate`."""

    def __post_init__(self) -> None:
        from hotlap.tuning.micro_batches.result import size_given

        is_auto = self.given is not None and size_given(self.given) is None
        if is_auto and self.estimates:
            raise UsageError(
                "--micro-batch auto runs trials, and --estimate runs nothing, so they cannot be "
                "used together. Remove --estimate, or pass a number of samples instead of `auto`, "
                "as in --micro-batch 16."
            )
        if self.memory is not None and not (self.estimates or is_auto):
            raise UsageError(
                f"--memory {self.memory} works only with --estimate or --micro-batch auto. Add one "
                "of these, or remove --memory."
            )
        if self.again and not is_auto:
            raise UsageError(
                "--again works only with --micro-batch auto, whose trials it repeats. Add "
                "--micro-batch auto, or remove --again."
            )

    def choose(
        self, recipe: RecipeRun, task: Any, plan: Plan, host: Host, techniques: tuple[str, ...]
    ) -> "ChosenMicroBatch":
        """Return the plan to train under, and what was found if trials were asked for.

        Raises:
            UsageError: the number is larger than the batch, or the step cannot be split.
            RunError: no micro-batch fits.
        """
        from hotlap.tuning.micro_batches.result import size_given, with_micro_batch

        if self.given is None:
            return ChosenMicroBatch(plan)
        size = size_given(self.given)
        if size is not None:
            batch, own = task.logical_batch, task.most_samples
            return ChosenMicroBatch(with_micro_batch(plan, size, batch, own))
        if (world := detect_ranks(os.environ).world) > 1:
            raise UsageError(
                f"--micro-batch auto cannot be used with {world} ranks, as its trials use one "
                "device. Run `hotlap train` with --micro-batch auto once on one device, without "
                "--devices, torchrun or Slurm. Then pass the fastest, or the largest, size that "
                "it prints before it trains, as in --micro-batch 16."
            )
        from hotlap.engine.memory.estimate import memory_size
        from hotlap.report.micro_batches import line
        from hotlap.tuning.micro_batches.call import find
        from hotlap.tuning.micro_batches.kept import kept_micro_batch

        memory = None if self.memory is None else memory_size(self.memory)
        options: dict[str, Any] = {"memory": memory, "techniques": techniques}
        kept = kept_micro_batch(recipe, plan, host, again=self.again, **options)
        found = find(recipe, plan, kept, progress=say, **options)
        say(line(found))
        return ChosenMicroBatch(found.plan(plan), found, kept)


@dataclass(frozen=True)
class ChosenMicroBatch:
    """The plan to train under, and how it was found."""

    plan: Plan
    found: Any = None
    kept: Any = None

    def remember(self, done: Any) -> None:
        """Note for the next run what ran out of memory in this one."""
        if self.kept is not None:
            for retry in done.retries:
                self.kept.keep_too_large(retry.samples)

    def to_json(self) -> dict[str, Any]:
        """Return what the report of the run holds in addition."""
        return {} if self.found is None else {"micro_batch": self.found.to_json()}
