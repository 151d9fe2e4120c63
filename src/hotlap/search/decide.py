"""The next job of a search: promotions (ASHA, Hyperband), new trials, other seeds. No torch.

Asynchronous successive halving as in Li et al., "A System for Massively Parallel Hyperparameter
Tuning" (2018): whenever a worker is free, the best trial among the top `1 / reduction` of a rung
that was not promoted yet goes on to the next rung; else a new trial begins.
"""

from collections.abc import Iterator

from hotlap.search.spec import SearchSpec
from hotlap.search.state import Job, SearchState, TrialState

REPEATED = 2
"""Configurations that are repeated with other seeds, besides the recipe's own."""


def next_job(state: SearchState) -> Job | None:
    """Return what to start, None if nothing can be started now.

    The search is over once that is None and nothing is open.
    """
    spec = state.spec
    job = _promotion(state)
    if job is not None:
        return job
    if len(state.trials) < spec.trials:
        number = len(state.trials)
        return Job(number, first_rung(spec, number))
    if any(job.repeat == 0 for job in state.open):
        return None
    return _to_the_end(state) or _repeat(state)


def first_rung(spec: SearchSpec, number: int) -> int:
    """Return the rung to which a trial is trained at first.

    With Hyperband, brackets begin at different rungs, in the proportions of the original; trials
    are dealt to them by their number.
    """
    if spec.method != "hyperband":
        return 0
    count = len(spec.rungs)
    sizes = [-(-count * spec.reduction**halvings // (halvings + 1)) for halvings in range(count)]
    place = number % sum(sizes)
    for halvings in reversed(range(count)):
        if place < sizes[halvings]:
            return count - 1 - halvings
        place -= sizes[halvings]
    raise AssertionError("a place lies in one of the brackets")


def _promotion(state: SearchState) -> Job | None:
    """Return the best promotion that is due, from the highest rung down."""
    spec = state.spec
    brackets: dict[int, list[TrialState]] = {}
    for trial in state.trials:
        brackets.setdefault(first_rung(spec, trial.number), []).append(trial)
    for rung in reversed(range(len(spec.rungs) - 1)):
        for bracket in sorted(brackets):
            trials = brackets[bracket]
            # A trial that failed was compared, too.
            count = sum(rung in trial.outcomes for trial in trials)
            for trial in state.ranked(rung, trials)[: count // spec.reduction]:
                if not _is_promoted(state, trial, rung):
                    return Job(trial.number, rung + 1)
    return None


def _is_promoted(state: SearchState, trial: TrialState, rung: int) -> bool:
    return rung + 1 in trial.outcomes or Job(trial.number, rung + 1) in state.open


def _to_the_end(state: SearchState) -> Job | None:
    """Return what leads a trial to the last rung, if no candidate has come there yet."""
    last = len(state.spec.rungs) - 1
    if state.ranked(last):
        return None
    for rung in reversed(range(last)):
        for trial in state.ranked(rung):
            # One that went further has failed there, or held too much memory.
            if rung + 1 not in trial.outcomes:
                return Job(trial.number, rung + 1)
    return None


def finalists(state: SearchState) -> list[TrialState]:
    """Return the best trials that were trained to the end.

    With several objectives, the best one in each of them is among these.
    """
    last = len(state.spec.rungs) - 1
    ranked = state.ranked(last)
    if not state.spec.more:
        return ranked[:REPEATED]
    front = state.front(last)
    ends = [
        min(front, key=lambda trial: (state.ranks_at(trial, last) or ())[axis])
        for axis in range(len(state.spec.objectives))
        if front
    ]
    found = list({trial.number: trial for trial in [*ends, *ranked]}.values())
    return found[: max(REPEATED, len({trial.number for trial in ends}))]


def _repeat(state: SearchState) -> Job | None:
    """Return the next repetition with another seed."""
    for trial in repeated(state):
        for seed in range(1, state.spec.seeds + 1):
            job = Job(trial.number, len(state.spec.rungs) - 1, seed)
            if seed not in trial.repeats and job not in state.open:
                return job
    return None


def repeated(state: SearchState) -> Iterator[TrialState]:
    """Give the trials that are compared over seeds: the finalists, and the recipe's own values."""
    best = finalists(state)
    if not best or not state.spec.seeds:
        return
    yield from best
    own = state.trials[0]
    if state.spec.defaults is not None and not own.failed and own not in best:
        yield own
