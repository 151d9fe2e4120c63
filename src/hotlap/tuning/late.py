"""Where techniques are tried that do nothing in the first steps of a run (`acts_late`).

With enough time they are raced and proven in fresh processes that have got to the age at which the
watched run called for them. Else they are raced in the watched process, which is as old, and steps
of it are kept for the proof.
"""

from collections.abc import Sequence

from hotlap.lab.observing import Observation
from hotlap.lab.turn_lengths import late_age
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.live_decisions import find_best
from hotlap.tuning.live_races import LiveRaces
from hotlap.tuning.time_plan import LEAST_HORIZON, has_time_for_age
from hotlap.tuning.tuner import Tuner


def place_late_ones(
    tuner: Tuner, seen: Observation, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Return the candidates without those that act late, if they cannot be tried anywhere.

    Args:
        tuner: what the tuning shares; whether they are tried in the watched process is noted in it.
        seen: the watched plain run.
        candidates: all of them.
    """
    late = _late_ones(tuner, candidates)
    if not late or _get_so_old(tuner, seen):
        return list(candidates)
    tuner.is_late_live = True
    if _can_keep_steps(seen) and all(tuner.known[c.technique].live for c in late):
        return list(candidates)
    return without_late_ones(tuner, seen, candidates)


def without_late_ones(
    tuner: Tuner, seen: Observation, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Return what may be tried in fresh processes: nothing that shows in the watched one only."""
    late = _late_ones(tuner, candidates) if tuner.is_late_live else []
    if late:
        tuner.notes.note_untried(late, _why_not_fresh(tuner, seen))
    return [candidate for candidate in candidates if candidate not in late]


def slowdown(tuner: Tuner, live: LiveRaces) -> float:
    """Return how many times as long as an early step of the plain run a late one takes.

    What acts late gives that back, and was raced at that age; 1 where it was not, or where it does
    not surely look faster.
    """
    ratios = [
        decision.ratio.median
        for candidate, decision in live.alone.items()
        if tuner.known[candidate.technique].acts_late
        and find_best([decision])
        and decision.ratio is not None
    ]
    return max(ratios, default=1.0)


def _can_keep_steps(seen: Observation) -> bool:
    """Return whether steps of the watched process can be kept whole, for the proof.

    They cannot where batches do not come from a DataLoader, or where the turns of a race may end
    between the steps of two optimizers.
    """
    facts = seen.trace.facts
    return seen.trial is not None and bool(facts.training_loaders) and len(facts.optimizers) == 1


def _late_ones(tuner: Tuner, candidates: Sequence[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if tuner.known[candidate.technique].acts_late]


def _get_so_old(tuner: Tuner, seen: Observation) -> bool:
    """Return whether fresh processes get so old that it shows."""
    age = late_age(len(seen.trace.steps))
    return _has_steps(tuner, age) and has_time_for_age(seen.trace, tuner.budget, age)


def _has_steps(tuner: Tuner, age: int) -> bool:
    return tuner.most_steps is None or tuner.most_steps >= age + LEAST_HORIZON


def _why_not_fresh(tuner: Tuner, seen: Observation) -> str:
    """Return why fresh processes do not get so old, and note the budget that would do."""
    age = late_age(len(seen.trace.steps))
    if not _has_steps(tuner, age):
        return f"it shows after {age} steps only: use --steps {age + LEAST_HORIZON} or more"
    option = tuner.budget.ask(2 * tuner.budget.seconds)
    return f"it shows after {age} steps only, and the budget is too short: use {option}"
