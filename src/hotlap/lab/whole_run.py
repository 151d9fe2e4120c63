"""`predict_whole_run`: the time of a whole run, from the trace of its beginning. Runs nothing."""

import itertools
from dataclasses import dataclass
from statistics import fmean, median

from hotlap.task import LoaderFacts
from hotlap.trace.schema import Trace

_EXIT_S = 0.2
"""What Python and torch take to go away, after the script's last line."""


_ENOUGH_STEPS = 30
_FIRST_STEPS = 5
"""In which a plan compiles; more of them may hold an evaluation."""


def seconds_to_read(trace: Trace) -> float:
    """Return about how many seconds it takes to read every training sample."""
    loaders = [loader for loader in trace.facts.loaders if loader.training]
    data_ms = trace.phase_means().get("data", 0.0)
    workers = max((loader.num_workers for loader in loaders), default=0)
    if workers:
        # At the most: they may have read during all of the step.
        data_ms = trace.step_ms()["mean"] * workers
    batches = [(each.length or 0) / max(1, each.batch_size or 1) for each in loaders]
    return data_ms * max(batches, default=0.0) / 1e3


@dataclass(frozen=True)
class WholeRun:
    """The predicted time of the run that the user planned, from process start to end."""

    seconds: float | None
    """None if the number of steps is not known."""
    covers: str
    """What the prediction rests on."""
    slowed: float = 1.0
    """How many times as long steps take beside other processes, where that was reckoned with."""
    slowdown: float = 1.0
    """How many times as long later steps take as early ones, where that was reckoned with."""
    start_s: float = 0.0
    """Seconds of the set-up and of the end of the process, and what the first steps take beyond
    later ones, as where they compile."""
    between_s: float = 0.0
    """Seconds of what comes after epochs: evaluation, saving."""
    steps: int = 0
    """Optimizer steps of the run."""

    @property
    def steps_s(self) -> float:
        """Seconds of the steps; 0 where the run is not predicted."""
        return 0.0 if self.seconds is None else self.seconds - self.start_s - self.between_s

    def parts(self) -> dict[str, float] | None:
        """Return what the seconds are made of; None where the run is not predicted."""
        if self.seconds is None:
            return None
        return {"start_s": self.start_s, "steps_s": self.steps_s, "between_s": self.between_s}


@dataclass(frozen=True)
class _Epochs:
    """What a run that was watched beyond the start of its second epoch shows of its epochs."""

    starts: list[int]
    periods: list[float]
    """Seconds of each whole epoch, with what comes after it."""
    first_mean: float
    """Seconds of a step of the first one."""
    mean: float
    """The same of the last whole one."""

    @property
    def steps(self) -> int:
        return self.starts[1] - self.starts[0]

    @property
    def between(self) -> float:
        """Seconds of what comes between two epochs: evaluation, saving, the start of the next."""
        return self.periods[-1] - self.steps * self.mean

    @property
    def first_between(self) -> float:
        """The same after the first one."""
        return self.periods[0] - self.steps * self.first_mean

    def all_between(self, planned_steps: int, later: float | None = None) -> float:
        """Return what comes after all epochs of a run: `later`, after each but the first."""
        later = self.between if later is None else later
        return max(0.0, self.first_between) + (planned_steps / self.steps - 1) * max(0.0, later)


def _epochs(trace: Trace) -> _Epochs | None:
    """Return what a run shows of its epochs, None if it was not watched for a whole one."""
    totals = _step_seconds(trace)
    starts = sorted({start for start in trace.epoch_starts if start < len(totals)})
    # The record of an epoch's first step holds the evaluation of the epoch before it.
    periods = [sum(totals[a + 1 : b + 1]) for a, b in itertools.pairwise(starts)]
    if not periods:
        return None
    first, last = (
        fmean(totals[begin + 1 : end] or totals) for begin, end in (starts[:2], starts[-2:])
    )
    return _Epochs(starts, periods, first, last)


def _step_seconds(trace: Trace) -> list[float]:
    return [sum(row) / 1e3 for row in trace.steps]


def seconds_between_epochs(trace: Trace, planned_steps: int, *, is_served: bool = False) -> float:
    """Return the seconds of a whole run that pass between its epochs, as far as they were seen.

    Args:
        trace: the plain run.
        planned_steps: optimizer steps of the whole run.
        is_served: True for a run that has every sample in memory once it was read.
    """
    epochs = _epochs(trace)
    return 0.0 if epochs is None else _between(trace, epochs, planned_steps, is_served=is_served)


def _between(trace: Trace, epochs: _Epochs, planned_steps: int, *, is_served: bool) -> float:
    later = _served(trace, epochs.between) if is_served else None
    return epochs.all_between(planned_steps, later)


def _served(trace: Trace, between: float) -> float:
    """Return the seconds between epochs where samples are in memory.

    What an evaluation reads is read like the training samples, if it is of the same kind.

    Args:
        trace: the plain run.
        between: the seconds where they are not.
    """
    training = [loader for loader in trace.facts.loaders if loader.training]
    kinds, size = {loader.dataset for loader in training}, sum(_batch(one) for one in training)
    batches = sum(
        (loader.batches or 0) * _batch(loader) / max(1, size)
        for loader in trace.facts.loaders
        if not loader.training and not loader.num_workers and loader.dataset in kinds
    )
    phases, usual = trace.phase_means(), max(0.0, between)
    read_s, forward_s = (batches * phases.get(name, 0.0) / 1e3 for name in ("data", "forward"))
    return min(usual, max(usual - read_s, forward_s))


def _batch(loader: LoaderFacts) -> int:
    return loader.batch_size or 0


def predict_whole_run(
    trace: Trace,
    planned_steps: int | None,
    steady_ms: float | None = None,
    beside: Trace | None = None,
    *,
    late_ms: float | None = None,
    is_served: bool = False,
) -> WholeRun:
    """Predict from a run's first epoch, its last whole one, and what comes between epochs.

    The first epoch is counted as it was (it may read what later ones have in memory).

    Args:
        trace: the run, watched from its start.
        planned_steps: optimizer steps of the whole run.
        steady_ms: ms per step of later epochs, from a race. Of the two measurements the smaller
            one counts: whatever disturbs a host only slows it.
        beside: the run that the prediction will be compared with. What comes between epochs is
            taken from it where only it was watched for so long: both must count it, or neither.
        late_ms: the same as `steady_ms` of all steps beyond those that were watched, where steps
            are known to become slower; it counts whatever the others are.
        is_served: True for a run that has every sample in memory once it was read; it counts where
            what comes between later epochs was not seen. How long reading takes, `beside` says.
    """
    if planned_steps is None:
        return WholeRun(None, trace.facts.planned_why)
    totals, epochs = _step_seconds(trace), _epochs(trace)
    if trace.ended == "script":
        return _measured(trace, epochs)
    if epochs is None:
        return _from_steps_alone(
            trace, planned_steps, steady_ms, beside, late_ms=late_ms, is_served=is_served
        )
    steady = (steady_step_ms(trace, steady_ms) if late_ms is None else late_ms) / 1e3
    between = epochs.between
    if is_served and beside is not None and len(epochs.periods) == 1:
        # What came after the first epoch was read then; it is served after later ones.
        between = _served(beside, between)
    later = between + epochs.steps * steady
    seconds = trace.setup_s + totals[0] + epochs.periods[0] + _EXIT_S
    seconds += (planned_steps / epochs.steps - 1) * later
    words = f"{len(epochs.periods)} whole epochs of {epochs.steps} steps"
    return WholeRun(
        seconds,
        words,
        start_s=_start_seconds(trace),
        between_s=epochs.all_between(planned_steps, between),
        steps=planned_steps,
    )


def steady_step_ms(trace: Trace, raced_ms: float | None = None) -> float:
    """Return the mean ms of a step of later epochs, or of all where none was seen.

    Args:
        trace: the run, watched from its start.
        raced_ms: the same from a race; the smaller of the two counts.
    """
    totals, epochs = _step_seconds(trace), _epochs(trace)
    if epochs is None:
        seconds = fmean(totals[1:] or totals)
    else:
        after = totals[epochs.starts[-1] + 1 :]
        seconds = fmean(after) if len(after) >= _ENOUGH_STEPS else epochs.mean
    return seconds * 1e3 if raced_ms is None else min(seconds * 1e3, raced_ms)


def _measured(trace: Trace, epochs: _Epochs | None) -> WholeRun:
    """Return the run that was watched until it ended."""
    seconds, steps = trace.setup_s + sum(_step_seconds(trace)) + _EXIT_S, len(trace.steps)
    between_s = 0.0
    if epochs is not None:
        # A record ends with its step: none holds what came after the last epoch.
        seconds += max(0.0, epochs.between)
        between_s = epochs.all_between(steps)
    return WholeRun(
        seconds,
        "the whole run was measured",
        start_s=_start_seconds(trace),
        between_s=between_s,
        steps=steps,
    )


def _from_steps_alone(
    trace: Trace,
    planned_steps: int,
    steady_ms: float | None,
    beside: Trace | None,
    *,
    late_ms: float | None,
    is_served: bool,
) -> WholeRun:
    known = None if beside is None else _epochs(beside)
    totals = _step_seconds(trace)
    first = fmean(totals[1:] or totals)
    epoch = known.steps if known is not None else trace.facts.steps_per_epoch or planned_steps
    later = steady_step_ms(trace, steady_ms) / 1e3
    early = min(epoch, planned_steps)
    if late_ms is not None:
        early, later = min(len(totals), planned_steps), late_ms / 1e3
    between_s = 0.0
    words = f"{len(totals)} steps; the end of an epoch was not reached"
    if beside is not None and known is not None:
        between_s = _between(beside, known, planned_steps, is_served=is_served)
        words += ": what comes after one is that of the run beside it"
    seconds = trace.setup_s + totals[0] + early * first + (planned_steps - early) * later + _EXIT_S
    return WholeRun(
        seconds + between_s,
        words,
        start_s=_start_seconds(trace),
        between_s=between_s,
        steps=planned_steps,
    )


def shows_epochs(trace: Trace) -> bool:
    """True if the run was watched for a whole epoch."""
    return _epochs(trace) is not None


def predict_from_plain(plain: WholeRun, seen: Trace, own: Trace, saved_s: float) -> WholeRun:
    """Predict a plan's run where no epoch ends: the plain run, less what the plan's steps save.

    The model may be evaluated or saved at any step there: of two watched stretches one may hold
    that, and the other not.

    Args:
        plain: what is predicted of the plain run.
        seen: the plain run, watched from its start.
        own: the plan's run, watched from its start.
        saved_s: seconds that the plan's steps save together, from a race.
    """
    if plain.seconds is None:
        return plain
    longer_s = _start_seconds(own) - _start_seconds(seen)
    return WholeRun(
        plain.seconds + longer_s - saved_s,
        "the plain run's, its start exchanged, less what the steps save",
        start_s=plain.start_s + longer_s,
        between_s=plain.between_s,
        steps=plain.steps,
    )


def excess_of_first_steps(trace: Trace) -> float:
    """Return the seconds that the first steps take beyond later ones, as where they compile."""
    totals = _step_seconds(trace)
    usual = median(totals)
    return sum(max(0.0, each - usual) for each in totals[:_FIRST_STEPS])


def _start_seconds(trace: Trace) -> float:
    return trace.setup_s + excess_of_first_steps(trace) + _EXIT_S
