"""Live candidates: raced first, in short turns inside one process, to put the others in order."""

from collections.abc import Sequence

from hotlap.errors import HotlapError
from hotlap.lab.duel import WORTH, Decision, Duel, duel
from hotlap.lab.observing import Observation
from hotlap.lab.statistics import figures
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.result import TrialRow
from hotlap.tuning.tuner import Tuner

_SHARE = 0.15
"""Of the budget, for a duel."""
_SECONDS = 20.0
"""That a duel takes at the most, beside the start of its process."""
_SEAMS = ("process", "optimizer")


def order_by_duel(
    tuner: Tuner, seen: Observation, candidates: Sequence[Candidate], hinted: int
) -> list[Candidate]:
    """Return the candidates in the order that a duel of the live ones suggests.

    What is faster comes first, the fastest of all; what is not worth it comes last; and what is
    clearly slower is dropped. Nothing is claimed from a duel: whatever it says is raced again in
    fresh processes.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        candidates: the most promising first.
        hinted: how many of them stay where they are, and in any case.
    """
    first, rest = list(candidates[:hinted]), list(candidates[hinted:])
    live = [candidate for candidate in rest if _is_live(tuner, candidate)]
    seconds = min(_SECONDS, _SHARE * tuner.budget.seconds)
    if tuner.owns_step or not live or tuner.budget.left < 4 * (seen.trace.setup_s + seconds):
        return [*first, *rest]
    tuner.progress(f"{len(live)} plans in one process, switched between steps")
    try:
        found = duel(
            tuner.lab,
            [candidate.plan() for candidate in live],
            step_ms=seen.trace.step_ms()["median"],
            seconds=seconds,
            steps=seen.trace.facts.planned_steps,
            settle=max(_settle(tuner, candidate) for candidate in live),
        )
    except HotlapError as error:
        tuner.progress(f"they could not be raced in one process: {str(error).splitlines()[0]}")
        return [*first, *rest]
    return [*first, *_reorder(tuner, found, live, rest)]


def _is_live(tuner: Tuner, candidate: Candidate) -> bool:
    technique = tuner.known[candidate.technique]
    seam = technique.seam_of(technique.options(candidate.options))
    return technique.live is not None and seam in _SEAMS


def _settle(tuner: Tuner, candidate: Candidate) -> int:
    technique = tuner.known[candidate.technique]
    return 0 if technique.live is None else technique.live.settle


def _reorder(
    tuner: Tuner, found: Duel, live: Sequence[Candidate], rest: Sequence[Candidate]
) -> list[Candidate]:
    placebo = found.placebo
    noise = WORTH if placebo is None else max(WORTH, placebo.high - 1, 1 / placebo.low - 1)
    by_name = {c.name: d for c, d in zip(live, found.decisions, strict=True)}
    faster = [c for c in live if _low(by_name[c.name]) > 1 + noise]
    faster.sort(key=lambda candidate: -_low(by_name[candidate.name]))
    last: list[Candidate] = []
    for candidate in live:
        decision = by_name[candidate.name]
        # A few turns may all have been disturbed: nothing is put back without evidence.
        if decision.ratio is None or decision.state != "not_faster":
            continue
        if decision.ratio.high < 1 / (1 + noise):
            tuner.notes.note_slower(candidate, figures(decision.ratio))
            tuner.trials.append(TrialRow(candidate.plan(), 0, decision.ratio, None))
        else:
            last.append(candidate)
    dropped = {row.plan.hash for row in tuner.trials if row.race == 0}
    kept = [c for c in rest if c.plan().hash not in dropped]
    between = [c for c in kept if c not in faster and c not in last]
    return [*faster, *between, *last]


def _low(decision: Decision) -> float:
    return decision.ratio.low if decision.ratio is not None else 0.0
