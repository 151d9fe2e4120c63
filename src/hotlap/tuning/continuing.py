"""What a tuning takes over from an earlier one of the same script, and keeps for the next."""

from collections.abc import Sequence

from hotlap.lab.decisions import Decision
from hotlap.lab.process_race import Race
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.concluding import WORTH_CALLING
from hotlap.tuning.live_races import LiveRaces
from hotlap.tuning.result import TrialRow
from hotlap.tuning.tuner import Tuner


def continued_races(tuner: Tuner, candidates: Sequence[Candidate]) -> LiveRaces | None:
    """Return what gained in one process in an earlier tuning, None if nothing did."""
    kept = tuner.kept
    changed = {plan for plan, verdict in kept.verdicts.items() if verdict.tier == "changed"}
    finalists = {plan: each for plan, each in kept.finalists.items() if plan not in changed}
    if not finalists or not kept.had_as_much(tuner.budget.seconds):
        return None
    if tuner.is_late_live and any(map(tuner.acts_late, finalists)):
        # Of these steps are needed, which only a process that lives can give.
        return None
    alone = {c: kept.decisions[c.plan()] for c in candidates if c.plan() in kept.decisions}
    tuner.note_alone(alone)
    rest = [candidate for candidate in candidates if candidate.plan() in kept.rest]
    return LiveRaces(finalists, rest, alone, kept.live_floor)


def without_decided_ones(tuner: Tuner, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without those that gave nothing alone in an earlier tuning."""
    useless = [candidate for candidate in candidates if _is_useless(tuner, candidate)]
    for candidate in useless:
        decision = tuner.kept.decisions[candidate.plan()]
        tuner.notes.note_earlier(candidate, decision)
        if decision.ratio is not None:
            tuner.trials.append(TrialRow(candidate.plan(), 1, decision.ratio, None, "earlier"))
    return [candidate for candidate in candidates if candidate not in useless]


def _is_useless(tuner: Tuner, candidate: Candidate) -> bool:
    decision = tuner.kept.decisions.get(candidate.plan())
    return decision is not None and decision.state in ("not_faster", "failed")


def keep_races(tuner: Tuner, live: LiveRaces | None) -> LiveRaces | None:
    """Keep, and return, what races in one process said, if there were any."""
    if live is None:
        return None
    alone = {candidate.plan(): decision for candidate, decision in live.alone.items()}
    rest = [candidate.plan() for candidate in live.rest]
    tuner.kept.keep_live(alone, live.finalists, rest, live.floor, tuner.budget.seconds)
    return live


def keep_first_race(tuner: Tuner, candidates: Sequence[Candidate], race: Race) -> None:
    """Keep which candidates gave nothing alone, in fresh processes."""
    acted = [c for c in candidates if c.name in race.arms and race.took_effect(c.name)]
    raced = {candidate.plan(): race.ratio(candidate.name) for candidate in acted}
    tuner.kept.keep_decisions(
        {
            plan: Decision((), "not_faster", ratio)
            for plan, ratio in raced.items()
            if ratio.high < 1 + WORTH_CALLING
        }
    )
