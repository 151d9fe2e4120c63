"""What a race says of each suspect: the milliseconds that its remedy saved, or an upper bound."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hotlap.diagnosis.findings import UNDECIDED, Diagnosis, Finding, Opportunity, Suspect
from hotlap.diagnosis.tried import Trials, Tried, in_words, with_doubt
from hotlap.lab.arm import Arm
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.rules import Nomination
from hotlap.techniques import Technique

_NO_PLAN = "depends on the remedy"
"""Numerics of a finding whose remedy is an edit of the script."""

WORTH_CALLING = 0.05
"""What looks faster by more than this share is not called free of cost."""


def still_wanted(
    plans: Mapping[str, Plan], nominations: Sequence[Nomination], live: Trials
) -> dict[str, Plan]:
    """Return the plans that were not tried, and would tell something more.

    A cause that one of its remedies convicts needs no other remedy.
    """
    idle = set()
    for nomination in nominations:
        if any(tried.is_gain for tried in live.of_all(nomination.remedies)):
            idle |= {str(plan) for plan in nomination.remedies}
    return {
        name: plan for name, plan in plans.items() if name not in live.tried and name not in idle
    }


def trials_of_race(
    race: Race, arms: Sequence[Arm], known: Mapping[str, Technique] | None = None
) -> Trials:
    """Return what a race of fresh processes says.

    Args:
        race: what came out.
        arms: those that were in it, those that failed too.
        known: the techniques by name, those from outside too; the package's own if None.
    """
    return Trials({arm.name: _tried_fresh(race, arm, known) for arm in arms}, race.floor)


def _tried_fresh(race: Race, arm: Arm, known: Mapping[str, Technique] | None) -> Tried:
    plan = arm.plan
    if arm.failed is not None or arm.name not in race.arms:
        return Tried(plan, None, f"{plan}: {arm.failed or 'not in the race'}")
    idle = [row for row in arm.techniques if row["state"] != "applied"]
    if idle:
        return Tried(plan, None, f"{plan}: {idle[0]['state']}, {idle[0]['why']}")
    ratio = race.ratio(arm.name)
    return Tried(
        plan,
        ratio,
        in_words(plan, ratio),
        why=f"{race.ratio_of_means(arm.name):.2f}x by the mean of all steps",
        is_gain=race.gains(arm.name, race.floor),
        is_open=ratio.low > 1 and ratio.median > 1 + WORTH_CALLING,
        floor=race.floor,
        step="mean" if race.takes_epochs else "median",
        known=known,
    )


def conclude(
    known: Diagnosis,
    nominations: Sequence[Nomination],
    switches: Sequence[Plan],
    trials: Trials,
) -> Diagnosis:
    """Return the diagnosis with what the trials say.

    Args:
        known: what the watched run has shown, findings that need no trial included.
        nominations: what the rules suspect.
        switches: plans of one technique each that blame no line.
        trials: what was tried, as far as the budget allowed.
    """
    step_ms = known.trace.step_ms()
    findings, ruled_out, suspects = [], [], []
    for nomination in nominations:
        remedies = trials.of_all(nomination.remedies)
        bound = _bound_of(nomination, trials)
        finding = _convict(nomination, remedies, bound, step_ms, known.is_recipe)
        if finding is not None:
            findings.append(finding)
            continue
        tried = [*remedies, *([bound] if bound is not None else [])]
        floor = max((one.floor for one in tried), default=trials.floor)
        # A bound that gains, and is no finding, takes away what is none of the nomination's.
        told = [one for one in tried if one is not bound or not one.is_gain]
        said = _in_words(told) or f"it takes {nomination.at_most_ms:.2f} ms a step at most"
        said += _below_share(nomination, bound, step_ms)
        words = said
        if not told or not all(map(_holds_no_gain, told)):
            # Where an interval holds 1 it says by itself why nothing is decided.
            words += f"; identical runs differ by up to {floor:.1%}"
        if any(one.is_open for one in told):
            suspects.append(suspect(nomination, f"{UNDECIDED}{words}", remedies))
        elif _is_cleared(nomination, remedies, bound):
            ruled_out.append(f"{nomination.rule} at {nomination.where}: {words}")
        elif any(one.ratio is not None for one in remedies):
            left = tuple(plan for plan in nomination.remedies if trials.of(plan) is None)
            why = f"what was tried takes away a part of it at most: {words}"
            suspects.append(suspect(replace(nomination, remedies=left), why))
        else:
            why = _in_words(told) or _why_untried(nomination)
            suspects.append(suspect(nomination, why, remedies))
    opportunities, without_gain = _opportunities(switches, trials, step_ms)
    return replace(
        known,
        findings=by_cost((*known.findings, *findings)),
        opportunities=opportunities,
        without_gain=without_gain,
        ruled_out=tuple(ruled_out),
        suspects=tuple(suspects),
        floor=trials.floor,
    )


def _bound_of(nomination: Nomination, trials: Trials) -> Tried | None:
    """Return what came of a nomination's bound, called by what was done, not by its plan."""
    bound = None if nomination.bound is None else trials.of(nomination.bound)
    if bound is None or bound.ratio is None:
        return bound
    ratio = bound.ratio
    words = f"{ratio.median:.2f}x as fast ({ratio.low:.2f} to {ratio.high:.2f})"
    return replace(bound, words=f"{nomination.bound_words}, a step is {words}")


def _below_share(nomination: Nomination, bound: Tried | None, step_ms: Mapping[str, float]) -> str:
    """Return in words that the bound saves something, and less than makes a cause; or nothing."""
    if bound is None or bound.ratio is None or not bound.is_gain:
        return ""
    saved = _saved_ms(step_ms, bound, bound.ratio.median)
    if saved >= nomination.bound_share * step_ms[bound.step]:
        return ""
    words = f"a step takes {saved:.2f} ms less, and a cause takes at least"
    return f"; {nomination.bound_words}, {words} {nomination.bound_share:.0%} of it"


def _is_cleared(nomination: Nomination, remedies: Sequence[Tried], bound: Tried | None) -> bool:
    """Return whether something was tried that takes all the time away, if there is any to take."""
    whole = [one for one in remedies if not nomination.partial & set(one.plan.techniques)]
    return any(one.ratio is not None for one in (*whole, bound) if one is not None)


def _why_untried(nomination: Nomination) -> str:
    if nomination.remedies or nomination.bound is not None:
        return "the budget was too short for what would measure it: use a larger --budget"
    return "no trial of hotlap's can measure it"


def suspect(nomination: Nomination, why: str, tried: Sequence[Tried] = ()) -> Suspect:
    """Return a nomination that was not measured.

    Args:
        nomination: what a rule suspects.
        why: it was not measured.
        tried: remedies; one that could not be measured is not advised.
    """
    failed = [str(one.plan) for one in tried if one.ratio is None]
    left = [plan for plan in nomination.remedies if str(plan) not in failed]
    plans = " or ".join(str(plan) for plan in left)
    advice = [nomination.advice[name] for plan in left for name in plan.techniques]
    # What is refused here can be edited in the script all the same.
    advice += [nomination.by_hand] if failed and nomination.by_hand else []
    # Several options of one technique have one line of advice.
    by_hand = "; ".join(dict.fromkeys(advice))
    remedy = f"{plans}, if that gains. In the script: {by_hand}" if plans else nomination.by_hand
    return Suspect(
        nomination.rule,
        nomination.where,
        nomination.evidence,
        nomination.at_most_ms,
        remedy,
        why,
    )


def sampled_finding(nomination: Nomination) -> Finding:
    """Return a cause whose cost was sampled under its line: no trial is needed to know it.

    Args:
        nomination: with `sampled_ms`.
    """
    assert nomination.sampled_ms is not None, f"{nomination.rule} has sampled nothing"
    cost, low, high = nomination.sampled_ms
    return Finding(
        rule=nomination.rule,
        kind=nomination.kind,
        cost_ms=cost,
        low=low,
        high=high,
        at_most_ms=nomination.at_most_ms,
        where=nomination.where,
        evidence=nomination.evidence,
        remedy=nomination.by_hand,
        plan={},
        numerics=_NO_PLAN,
        confidence="medium" if high - low <= cost else "low",
    )


def by_cost(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, those that cost most first."""
    return tuple(sorted(findings, key=lambda finding: -finding.cost_ms))


def _holds_no_gain(tried: Tried) -> bool:
    return tried.ratio is not None and tried.ratio.low <= 1 <= tried.ratio.high


def _in_words(tried: Sequence[Tried]) -> str:
    return "; ".join(map(with_doubt, tried))


def _saved_ms(step_ms: Mapping[str, float], tried: Tried, ratio: float) -> float:
    # The median is a step without evaluation, as most of a turn's are whose ratio it is.
    return step_ms[tried.step] * (1 - 1 / ratio)


def _convict(
    nomination: Nomination,
    remedies: Sequence[Tried],
    bound: Tried | None,
    step_ms: Mapping[str, float],
    is_recipe: bool,
) -> Finding | None:
    gains = [tried for tried in remedies if tried.is_gain and tried.ratio is not None]
    if gains:
        best = max(gains, key=lambda tried: tried.ratio.median if tried.ratio else 0.0)
        return _by_remedy(nomination, best, remedies, bound, step_ms, is_recipe)
    if bound is not None and bound.is_gain:
        return _by_bound(nomination, remedies, bound, step_ms)
    return None


def _by_remedy(
    nomination: Nomination,
    best: Tried,
    remedies: Sequence[Tried],
    bound: Tried | None,
    step_ms: Mapping[str, float],
    is_recipe: bool,
) -> Finding:
    assert best.ratio is not None
    cost = _saved_ms(step_ms, best, best.ratio.median)
    at_most, bound_words = nomination.at_most_ms, ""
    if bound is not None and bound.ratio is not None:
        at_most, bound_words = _saved_ms(step_ms, bound, bound.ratio.median), nomination.bound_words
    (name,) = best.plan.techniques
    numerics = best.numerics
    remedy = best.words
    if numerics != "exact":
        exact = [t for t in remedies if t.ratio and t.numerics == "exact"]
        remedy += f"; keeping every bit: {exact[0].words}" if exact else ""
    if not is_recipe:
        in_script = nomination.advice.get(str(best.plan)) or nomination.advice[name]
        remedy += f". In the script: {in_script}"
    return Finding(
        rule=nomination.rule,
        kind=nomination.kind,
        cost_ms=cost,
        low=_saved_ms(step_ms, best, best.ratio.low),
        high=_saved_ms(step_ms, best, best.ratio.high),
        at_most_ms=at_most,
        where=nomination.where,
        evidence=nomination.evidence,
        remedy=remedy,
        plan=best.plan.techniques,
        numerics=numerics,
        confidence=_confidence(best.ratio, best.floor),
        bound_words=bound_words,
    )


def _by_bound(
    nomination: Nomination, remedies: Sequence[Tried], bound: Tried, step_ms: Mapping[str, float]
) -> Finding | None:
    """Return a cause that no technique removes: what a perfect remedy would save is measured."""
    assert bound.ratio is not None
    cost = _saved_ms(step_ms, bound, bound.ratio.median)
    # It may take away more than is blamed: a checkpoint without the optimizer's state is smaller.
    if min(cost, nomination.at_most_ms) < nomination.bound_share * step_ms[bound.step]:
        return None
    tried = _in_words(remedies) or "hotlap has no technique against it"
    return Finding(
        rule=nomination.rule,
        kind=nomination.kind,
        cost_ms=cost,
        low=_saved_ms(step_ms, bound, bound.ratio.low),
        high=_saved_ms(step_ms, bound, bound.ratio.high),
        at_most_ms=cost,
        where=nomination.where,
        evidence=f"{nomination.evidence}; {bound.words}",
        bound_words=nomination.bound_words,
        remedy=f"{nomination.by_hand} ({tried})",
        plan={},
        numerics=_NO_PLAN,
        confidence=_confidence(bound.ratio, bound.floor),
    )


def _confidence(ratio: Ratio, floor: float) -> str:
    return "high" if ratio.low > 1 + 2 * floor else "medium"


def _without_gain(tried: Tried) -> str:
    words = with_doubt(tried).removesuffix(".")
    if tried.ratio is None or tried.ratio.low <= 1:
        return words
    return f"{words}, and identical runs differ by up to {tried.floor:.1%}"


def _opportunities(
    switches: Sequence[Plan], trials: Trials, step_ms: Mapping[str, float]
) -> tuple[tuple[Opportunity, ...], tuple[str, ...]]:
    """Return those that gain, the largest gain first, and what came of the others, in words."""
    found, others = [], []
    for tried in trials.of_all(switches):
        # It is decided on less evidence than an interval takes, which may hold no gain at all.
        if tried.ratio is None or not tried.is_gain or tried.ratio.low <= 1:
            others.append(_without_gain(tried))
            continue
        ((name, options),) = tried.plan.techniques.items()
        found.append(
            Opportunity(
                technique=name,
                options=options,
                saves_ms=_saved_ms(step_ms, tried, tried.ratio.median),
                low=_saved_ms(step_ms, tried, tried.ratio.low),
                high=_saved_ms(step_ms, tried, tried.ratio.high),
                numerics=tried.numerics,
                remedy=tried.by_hand,
            )
        )
    return tuple(sorted(found, key=lambda row: -row.saves_ms)), tuple(others)
