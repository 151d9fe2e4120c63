"""`judge`: combines all checks into a `Verdict`; checks batches, hyperparameters, losses, seeds.

    batches          what reached the model: digests of every batch equal the plain run's
    hyperparameters  every hyperparameter and the count of updates equal at each step
    start            what is trained begins with the plain run's bits
    custody          each update finds what the one before has left, weights and optimizer's state
    delivery         each update gets the gradients that backward has computed, clipped as ever
    participation    the same parameters have a gradient at each update
    random           each step finds the random generators where the plain run's steps find them
    updates          each update, on drawn elements, repeated in float64 from its gradient and state
    gradient         at sampled steps, from the same weights and batch, against a float64 repetition
    update           at sampled steps, all of the update, with the plain run's hyperparameters
    buffers          at sampled steps, what the step changes in the model's buffers
    averages         copies of the model move towards its weights as in the plain run
    evaluation       the same is evaluated, and at equal weights gives the same
    losses           the mean of the later half of the losses

`exact` needs none of what is repeated at sampled steps, and more: losses, weights, buffers and what
evaluation gives bit-equal at every step.
`statistical`, for narrower formats, asks of the gradient only that it is right in the mean over
many sampled steps, and then that several seeds learn no worse, by a margin that stands below. Where
a check could not be made the verdict is `unproven`; where one failed it is `changed`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from statistics import fmean, pstdev, stdev
from typing import Any

from hotlap.lab.auxiliary_checks import (
    check_averages,
    check_buffers,
    check_evaluation,
    check_outputs,
)
from hotlap.lab.chain import check_custody, check_start
from hotlap.lab.coverage import Limit, covers, limits, not_checked
from hotlap.lab.curves import LossCurves
from hotlap.lab.delivery import check_delivery
from hotlap.lab.sampled_steps import (
    Check,
    SampledSteps,
    check_gradient,
    check_mean_gradient,
    check_update,
    confirm_failure,
)
from hotlap.lab.updates import check_participation, check_random, check_updates
from hotlap.techniques import Numerics

TIERS = ("exact", "rounding", "statistical", "unproven", "changed")
"""From best to worst."""
_STEPS = {
    "custody": check_custody,
    "delivery": check_delivery,
    "participation": check_participation,
    "random": check_random,
    "updates": check_updates,
    "averages": check_averages,
}
_OF_EVERY_STEP = ("batches", "hyperparameters", "start", *_STEPS)
CHECKS = (*_OF_EVERY_STEP, "evaluation", "gradient", "update", "buffers", "losses")
STATISTICAL_CHECKS = (*CHECKS, "seeds")

LOSS_SIGMAS = 4.0
SEEDS_MARGIN = 0.01
"""How much larger the loss may be than the plain run's, as a share of the loss at the start."""
LEAST_SEEDS = 3
_START = 8
_ONE_SIDED_T = {3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}
"""Number of seeds -> 95 % point of Student's t with one degree of freedom less."""


@dataclass(frozen=True)
class Verdict:
    """What is proven of a plan."""

    tier: str
    evidence: str
    horizon_steps: int
    checks: tuple[Check, ...] = ()
    covers: Mapping[str, Any] = field(default_factory=dict)
    """Which parts of the run were within the horizon, see `coverage.covers`."""
    limits: tuple[Limit, ...] = ()
    """The smallest changes that would have been seen."""
    not_checked: tuple[str, ...] = ()
    """What it says nothing of."""
    curves: LossCurves | None = None
    """The losses of both runs; None where they were not recorded."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.state == "failed")


@dataclass(frozen=True)
class SeedLosses:
    """Losses of the plain run and of the plan, from the same seeds, step by step."""

    plain: Sequence[Sequence[float]]
    other: Sequence[Sequence[float]]


Record = Mapping[str, Any]


def steps_of(record: Record) -> int:
    """Return the steps of a run; with several optimizers one step takes several updates."""
    return record.get("steps", len(record["weights"]))


def repeats_itself(first: Record, second: Record) -> str | None:
    """Return what differs between two plain runs, or None if they are bit-equal."""
    for key, words in (("batches", "batches"), ("loss_digests", "losses"), ("weights", "weights")):
        position = _first_difference(first[key], second[key])
        if position is not None:
            return f"{words} (first at {position + 1})"
    return None


def judge(
    plain: Record,
    other: Record,
    *,
    claimed: Numerics,
    plain_repeats: str | None,
    reference: SampledSteps | None = None,
    control: SampledSteps | None = None,
    checks: Collection[str] = STATISTICAL_CHECKS,
    seeds: SeedLosses | None = None,
) -> Verdict:
    """Give a verdict on a run under a plan.

    Args:
        plain: record of a plain run, see `attach.capture`.
        other: record of a run under the plan, over the same horizon.
        claimed: the weakest numerics that the plan's techniques claim.
        plain_repeats: what differed between two plain runs, None if nothing.
        reference: steps of the other run, repeated; see `attach.replay`.
        control: steps of a plain run, repeated in the same way. What fails for these as well says
            nothing of the plan.
        checks: the checks to make; leaving one out makes the verdict `unproven` at best, unless
            the run is bit-equal. Tests leave one out to show that it is the one that sees.
        seeds: losses from several seeds, for plans that claim no more than `statistical`.
    """
    horizon = min(steps_of(plain), steps_of(other))
    made = []
    if "batches" in checks:
        made.append(_check_batches(plain, other, plain_repeats))
    if "hyperparameters" in checks:
        made.append(_numbers(plain, other))
    if "start" in checks:
        made.append(check_start(plain, other, plain_repeats))
    for name, check_steps in _STEPS.items():
        if name in checks:
            made.append(check_steps(plain, other))
    equal = _bit_equal(plain, other, plain_repeats)
    if equal.state == "passed" and all(map(_is_settled, made)):
        tier = claimed.best_verdict
        verdict = Verdict(tier, equal.evidence, horizon, (*made, equal))
        return _with_coverage(verdict, plain, SampledSteps(), is_exact=True)
    is_narrow, claims_exact = claimed is Numerics.PRECISION, claimed is Numerics.EXACT
    draws_others = any(check.name == "random" and check.state == "partial" for check in made)
    if draws_others and claimed.best_verdict != "changed":
        claimed = max(claimed, Numerics.STREAM, key=list(Numerics).index)
    sampled = reference or SampledSteps(problem="not repeated")
    for name, found in _check_repeated_steps(
        plain, other, sampled, is_narrow, claims_exact
    ).items():
        if name not in checks:
            continue
        if control is not None:
            found = confirm_failure(found, _check_plain_steps(control)[name])
        if draws_others and name in ("gradient", "buffers") and found.state == "failed":
            words = "the step uses its own random numbers, so it could not be repeated"
            found = Check(name, "not_made", f"{words} ({found.evidence})")
        made.append(found)
    if "losses" in checks:
        made.append(_losses(plain, other))
    if claimed.best_verdict == "statistical" and "seeds" in checks:
        made.append(_seeds(seeds))
    concluded = _conclude(made, claimed, horizon)
    return _with_coverage(concluded, plain, sampled, is_exact=False, is_narrow=is_narrow)


def _is_settled(check: Check) -> bool:
    """True if a run that is bit-equal may be `exact` with this check as it is."""
    # Numbers that are drawn otherwise and did not count yet may count later.
    return check.state == "passed" or (check.state == "partial" and check.name != "random")


def _with_coverage(
    verdict: Verdict,
    plain: Record,
    sampled: SampledSteps,
    *,
    is_exact: bool,
    is_narrow: bool = False,
) -> Verdict:
    covered = covers(plain)
    return replace(
        verdict,
        covers=covered,
        limits=limits(verdict.checks, sampled, is_exact=is_exact, is_narrow=is_narrow),
        not_checked=not_checked(verdict.checks, covered),
    )


def _check_repeated_steps(
    plain: Record, other: Record, sampled: SampledSteps, is_narrow: bool, claims_exact: bool
) -> dict[str, Check]:
    """Make the checks that rest on what was repeated."""
    return {
        "gradient": (check_mean_gradient if is_narrow else check_gradient)(sampled),
        "update": check_update(sampled),
        "buffers": check_buffers(sampled, is_narrow=is_narrow),
        "evaluation": check_evaluation(
            plain, other, sampled, is_narrow=is_narrow, claims_exact=claims_exact
        ),
    }


def _check_plain_steps(sampled: SampledSteps) -> dict[str, Check]:
    """Make the same checks of a plain run, which is as wide as itself."""
    return {
        "gradient": check_gradient(sampled),
        "update": check_update(sampled),
        "buffers": check_buffers(sampled, is_narrow=False),
        "evaluation": check_outputs(sampled, is_narrow=False),
    }


def _conclude(made: Sequence[Check], claimed: Numerics, horizon: int) -> Verdict:
    failed = [check for check in made if check.state == "failed"]
    if failed:
        return Verdict("changed", _join(failed), horizon, tuple(made))
    open_checks = [check for check in made if check.state == "not_made"]
    needed = STATISTICAL_CHECKS if claimed.best_verdict == "statistical" else CHECKS
    left_out = sorted(set(needed) - {check.name for check in made})
    if open_checks or left_out:
        words = _join(open_checks) or f"not checked: {', '.join(left_out)}"
        return Verdict("unproven", words, horizon, tuple(made))
    # Not bit-equal, so a claim of `exact` has come down to the next.
    tier = "rounding" if claimed is Numerics.EXACT else claimed.best_verdict
    return Verdict(tier, _join(made), horizon, tuple(made))


def _join(checks: Sequence[Check]) -> str:
    return "; ".join(f"{check.name}: {check.evidence}" for check in checks)


def _first_difference(left: Sequence[Any], right: Sequence[Any]) -> int | None:
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def _check_batches(plain: Record, other: Record, plain_repeats: str | None) -> Check:
    if plain_repeats is not None and plain_repeats.startswith("batches"):
        return Check("batches", "not_made", f"two plain runs differ in their {plain_repeats}")
    for key, words in (("batches", "batch"), ("inputs", "model input")):
        # A loader that works ahead may have handed out one batch more when the run was stopped.
        count = min(len(plain[key]), len(other[key]))
        if abs(len(plain[key]) - len(other[key])) > 1:
            words = f"{len(other[key])} instead of {len(plain[key])} {words}s"
            return Check("batches", "failed", f"{words} in the same number of steps")
        position = _first_difference(plain[key][:count], other[key][:count])
        if position is not None:
            words = f"{words} {position + 1} differs from the plain run's"
            if key == "inputs" and _may_follow_from_weights(plain, other, position):
                words += ", the batches do not: it may have been computed from the weights"
                return Check("batches", "not_made", words)
            return Check("batches", "failed", words)
    if not plain["batches"] and not plain["inputs"]:
        return Check("batches", "not_made", "no batch was recorded")
    return Check("batches", "passed", f"{len(plain['batches'])} batches have equal digests")


def _may_follow_from_weights(plain: Record, other: Record, position: int) -> bool:
    """True if the weights had been rounded in another way before this input was made."""
    updates = plain.get("inputs_at")
    if not updates or not plain["batches"]:
        return False
    before = updates[position]
    return plain["weights"][:before] != other["weights"][:before]


def _numbers(plain: Record, other: Record) -> Check:
    position = _first_difference(plain["hyperparameters"], other["hyperparameters"])
    if position is not None:
        words = _changed_number(plain["hyperparameters"], other["hyperparameters"], position)
        return Check("hyperparameters", "failed", words)
    still = _idle_updates(other["weights"])
    plain_still = _idle_updates(plain["weights"])
    if still != plain_still:
        step = next(iter(sorted(set(still) ^ set(plain_still))))
        words = f"{len(still)} updates moved no weight, {len(plain_still)} in the plain run"
        return Check("hyperparameters", "failed", f"{words} (first: step {step})")
    count = len(other["hyperparameters"])
    words = f"{count} updates with equal hyperparameters, each moved the weights"
    return Check("hyperparameters", "passed", words)


def _idle_updates(weights: Sequence[str]) -> list[int]:
    return [step + 1 for step in range(1, len(weights)) if weights[step] == weights[step - 1]]


def _changed_number(plain: Sequence[str], other: Sequence[str], position: int) -> str:
    if position >= len(plain) or position >= len(other):
        return f"{len(other)} updates instead of {len(plain)}"
    before, after = json.loads(plain[position]), json.loads(other[position])
    for old, new in zip(before, after, strict=False):
        for key in old:
            if old[key] != new.get(key):
                return (
                    f"at step {position + 1} {key} is {new.get(key)}, in the plain run {old[key]}"
                )
    return f"at step {position + 1} the parameter groups differ"


def _bit_equal(plain: Record, other: Record, plain_repeats: str | None) -> Check:
    if plain_repeats is not None:
        return Check("bits", "not_made", f"two plain runs differ in their {plain_repeats}")
    kinds = (
        ("loss_digests", "loss"),
        ("weights", "weights"),
        ("buffers", "buffers"),
        ("evaluated", "evaluation"),
    )
    for key, words in kinds:
        # None where two plain runs differ in it.
        position = None if plain.get(key) is None else _first_difference(plain[key], other[key])
        if position is not None:
            return Check("bits", "failed", f"{words} differ from step {position + 1} on")
    count = len(plain["weights"])
    words = f"losses, weights and buffers bit-equal to the plain run's after each of {count} steps"
    words += f", in each of {plain['ranks']} ranks" if "ranks" in plain else ""
    return Check("bits", "passed", words)


def _losses(plain: Record, other: Record) -> Check:
    count = min(len(plain["losses"]), len(other["losses"]))
    if count < 8:
        return Check("losses", "not_made", f"only {count} losses were recorded")
    half = slice(count // 2, count)
    ours, theirs = other["losses"][half], plain["losses"][half]
    if not all(abs(value) < float("inf") for value in ours):
        return Check("losses", "failed", "a loss is not finite")
    noise = pstdev(theirs) / len(theirs) ** 0.5
    shift = fmean(ours) - fmean(theirs)
    words = f"mean of the second half off by {shift:+.1e}, noise of that mean {noise:.1e}"
    state = "failed" if abs(shift) > LOSS_SIGMAS * noise + 1e-6 * abs(fmean(theirs)) else "passed"
    return Check("losses", state, words)


def _seeds(seeds: SeedLosses | None) -> Check:
    """Is the plan's loss no larger than the plain run's, by a margin that was there before?"""
    if seeds is None:
        return Check("seeds", "not_made", "only one seed was trained")
    count = len(seeds.plain)
    lengths = {len(row) for row in (*seeds.plain, *seeds.other)}
    if count < LEAST_SEEDS or min(lengths) < 2 * _START:
        least = f"at least {LEAST_SEEDS} of {2 * _START} are needed"
        words = f"{count} seeds of {min(lengths)} steps; {least}"
        return Check("seeds", "not_made", words)
    if any(not isfinite(loss) for row in seeds.other for loss in row):
        return Check("seeds", "failed", "a loss is not finite")
    margin = SEEDS_MARGIN * abs(fmean(fmean(row[:_START]) for row in seeds.plain))
    worse = [
        _mean_of_second_half(other) - _mean_of_second_half(plain)
        for plain, other in zip(seeds.plain, seeds.other, strict=True)
    ]
    mean = fmean(worse)
    doubt = _ONE_SIDED_T.get(count, 1.86) * stdev(worse) / count**0.5
    words = (
        f"loss {mean:+.1e} +- {doubt:.1e} against the plain run's over {count} seeds of "
        f"{min(lengths)} steps, margin {margin:.1e}"
    )
    if mean - doubt > margin:
        return Check("seeds", "failed", words)
    if mean + doubt > margin:
        return Check("seeds", "not_made", f"{words}: too few seeds to decide")
    return Check("seeds", "passed", words)


def _mean_of_second_half(losses: Sequence[float]) -> float:
    return fmean(losses[len(losses) // 2 :])
