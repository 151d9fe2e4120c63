"""Trials of micro-batches: whether they fit, each in a process of its own; and turns in one."""

from collections.abc import Callable, Iterable
from typing import Any

from hotlap.errors import RunError, TrialError, UsageError
from hotlap.lab.trial import Lab, Trial
from hotlap.plan import Plan
from hotlap.tuning.micro_batches.pacing import Paces, Turn, find_fastest, sizes_to_time
from hotlap.tuning.micro_batches.result import MicroBatch
from hotlap.tuning.micro_batches.search import Fit, find_largest, largest_of

_STEP_S = 600.0
"""Seconds after which a trial is thought to hang."""
_OWN = 0
"""Size that stands for that of the task's own micro-batches."""
_WORDS = ("bad_alloc", "Cannot allocate memory", "out of memory", "MemoryError")
"""What a process says that dies for want of memory without an exception."""

Progress = Callable[[str], None]


class MicroBatchTrials:
    """Trials of one recipe under one plan.

    Args:
        lab: an entered `Lab`.
        plan: how it is executed otherwise.
        memory: bytes to fit into, None for what the device has.
        progress: called with a line now and then.
    """

    def __init__(self, lab: Lab, plan: Plan, memory: int | None, progress: Progress) -> None:
        self._lab, self._plan, self._memory = lab, plan, memory
        self._progress = progress
        self.facts: dict[str, Any] = {}
        """What the first trial that reported said of task and device."""

    @property
    def subject(self) -> str:
        """The recipe with its arguments."""
        return str(self._lab.subject)

    def fit(self, size: int) -> Fit:
        """Take some steps in micro-batches of that size.

        Raises:
            TrialError: it failed for another reason than memory.
            UsageError: the step cannot be split.
        """
        found = self._fit(size)
        return found or self._tell(Fit(size, 0, why="its process died for want of memory"))

    def fit_whole(self) -> Fit | None:
        """Take some steps that are not split; None if the process died before it could tell."""
        return self._fit(None)

    def fits_as_it_is(self) -> bool:
        """Take some steps in the task's own micro-batches; return whether they fit."""
        found = self._fit(_OWN)
        return found is not None and found.fits

    def _fit(self, size: int | None) -> Fit | None:
        trial = self._start("fit", size)
        try:
            said = trial.message(["report"], _STEP_S)
        except TrialError as error:
            if not _is_memory(error):
                raise
            return None
        finally:
            trial.kill()
        self.facts = self.facts or said
        # Of what is free, every trial gets the same.
        self._memory = said["limit_bytes"]
        return self._tell(Fit(said["size"], said["peak_bytes"], said["base_bytes"], said["why"]))

    def _tell(self, found: Fit) -> Fit:
        words = f"{found.peak_bytes / 2**20:,.0f} MiB" if found.fits else f"no, {found.why}"
        self._progress(f"micro-batch {found.size}: {'fits, ' if found.fits else ''}{words}")
        return found

    def pace(self, largest: int, seconds: float, sizes: Iterable[int] | None = None) -> Paces:
        """Let sizes take turns.

        Args:
            largest: of the sizes, for which memory is set aside.
            seconds: about how long.
            sizes: the largest and the powers of two below it if None.
        """
        trial = self._start("pace", largest)
        try:
            trial.message(["ready"], _STEP_S)
            return find_fastest(
                lambda size, steps: self._turn(trial, size, steps),
                sizes_to_time(largest) if sizes is None else sorted(sizes, reverse=True),
                seconds=seconds,
            )
        finally:
            trial.kill()

    def _start(self, role: Any, size: int | None) -> Trial:
        return self._lab.start(role, self._plan, fill_ahead=True, size=size, memory=self._memory)

    @staticmethod
    def _turn(trial: Trial, size: int, steps: int) -> Turn:
        trial.send("turn", size=size, steps=steps)
        said = trial.message(["turn"], _STEP_S)
        return Turn(said["seconds"], said["samples"], said["steps"])


def measure(
    trials: MicroBatchTrials, *, seconds: float, below: int | None = None, progress: Progress
) -> MicroBatch:
    """Find the largest micro-batch that fits, and the fastest one.

    Args:
        trials: makes them.
        seconds: about how long sizes take turns.
        below: a size that is known to be too large.
        progress: called with a line now and then.

    Raises:
        RunError: not even one sample fits, or the step cannot be split and does not fit.
        TrialError: a trial failed for another reason than memory.
        UsageError: something in the task is not what it says it is.
    """
    progress("looking for the largest micro-batch that fits: a trial for each size")
    tried = [trials.fit_whole() or trials.fit(1)]
    if not trials.facts:
        raise RunError(
            f"`{trials.subject}` ran out of memory with a micro-batch of 1 sample, so none fits. "
            "Use a smaller model, or a device with more memory."
        )
    batch, limit = trials.facts["batch"], trials.facts["limit_bytes"]
    held = trials.facts["held_bytes"]
    if held:
        raise RunError(
            f"--memory of {_size(limit)} is less than the {held / 2**20:,.0f} MiB that "
            f"`{trials.subject}` holds on {trials.facts['device']} before its model is made. Use a "
            "larger --memory with a unit, as in --memory 2GiB; a number without a unit is bytes."
        )
    why_whole = trials.facts["why_not_split"] or ""
    if below is not None:
        known = Fit(below, 0, why="it ran out of memory in a run")
        tried = [*(each for each in tried if each.size < below or not each.fits), known]
    if not why_whole:
        tried = find_largest(trials.fit, batch, limit, tuple(tried))
    best = largest_of(tried)
    if best is None:
        raise RunError(_nothing_fits(trials, tried, limit, why_whole))
    paces = Paces()
    if not why_whole and best.size > 1:
        progress(f"timing micro-batches of {best.size} samples and less, in turns")
        try:
            paces = trials.pace(best.size, seconds)
        except UsageError as error:
            if best.size < batch:
                raise
            # A loss within the batch shows only when a step is split.
            why_whole = str(error)
        except TrialError as error:
            if not _is_memory(error):
                raise
            progress("they could not be timed: turns of several sizes ran out of memory")
    fastest = paces.fastest or best.size
    return MicroBatch(
        batch=batch,
        device=trials.facts["device"],
        limit_bytes=limit,
        largest=best.size,
        fastest=fastest,
        speedup=paces.times_faster(fastest, best.size) if best.size in paces.seconds else None,
        trials=tuple(sorted(tried, key=lambda each: each.size)),
        rates=paces.rates,
        own=trials.facts["own"],
        why_whole=why_whole,
    )


def _nothing_fits(trials: MicroBatchTrials, tried: list[Fit], limit: int, why_whole: str) -> str:
    smallest = min(tried, key=lambda each: each.size)
    words = (
        f"not even a micro-batch of {smallest.size} fits into {limit / 2**20:,.0f} MiB of "
        f"{trials.facts['device']}: {smallest.why}."
    )
    if why_whole:
        return (
            f"{words} The step is not split, as {why_whole}. Or use a larger --memory, a device "
            "with more memory, or a smaller model."
        )
    return (
        f"{words} Use a larger --memory, a device with more memory, or a smaller model. In "
        "`hotlap train`, you can also add `[techniques.recompute]` or `[techniques.autocast]` to "
        "the file that --plan names."
    )


def _size(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count:,} bytes"


def _is_memory(error: TrialError) -> bool:
    said = error.output
    return error.reason == "memory" or any(words in said for words in _WORDS)
