"""`judge`: combines all checks of a proof into a `Verdict`.

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
    buffers          at sampled steps, what the step changes in the model's buffers, and in a hidden
                     state that it returns and is called with again
    averages         copies of the model move towards its weights as in the plain run
    evaluation       the same is evaluated, and at equal weights gives the same
    losses           the mean of the later half of the losses
    late             for what acts late, steps of a live process at that age, see `late_steps`

`exact` needs none of what is repeated at sampled steps, and more: losses, weights, buffers and what
evaluation gives bit-equal at every step.
`statistical`, for narrower formats, asks of the gradient only that it is right in the mean over
many sampled steps, and then that several seeds learn no worse, by a margin that stands below. Where
a check could not be made the verdict is `unproven`; where one failed it is `changed`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hotlap.lab.auxiliary_checks import (
    check_averages,
    check_buffers,
    check_equal_evaluation,
    check_evaluation,
    check_outputs,
)
from hotlap.lab.chain import check_custody, check_start
from hotlap.lab.check import Check
from hotlap.lab.coverage import Limit, covers, limits, not_checked
from hotlap.lab.curves import LossCurves
from hotlap.lab.delivery import check_delivery
from hotlap.lab.run_checks import (
    Record,
    SeedLosses,
    check_batches,
    check_bits,
    check_hyperparameters,
    check_losses,
    check_seeds,
    first_difference,
)
from hotlap.lab.sampled_steps import (
    SampledSteps,
    check_gradient,
    check_mean_gradient,
    confirm_failure,
)
from hotlap.lab.saves_check import check_saves
from hotlap.lab.update_check import check_update
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
    "saves": check_saves,
}
_OF_EVERY_STEP = ("batches", "hyperparameters", "start", *_STEPS)
CHECKS = (*_OF_EVERY_STEP, "evaluation", "gradient", "update", "buffers", "losses")
STATISTICAL_CHECKS = (*CHECKS, "seeds")


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


def steps_of(record: Record) -> int:
    """Return the steps of a run; with several optimizers one step takes several updates."""
    return record.get("steps", len(record["weights"]))


def repeats_itself(first: Record, second: Record) -> str | None:
    """Return what differs between two plain runs, or None if they are bit-equal."""
    for key, words in (("batches", "batches"), ("loss_digests", "losses"), ("weights", "weights")):
        position = first_difference(first[key], second[key])
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
        plain: record of a plain run, as the role `record` gives it.
        other: record of a run under the plan, over the same horizon.
        claimed: the weakest numerics that the plan's techniques claim.
        plain_repeats: what differed between two plain runs, None if nothing.
        reference: steps of the other run, repeated, as the role `reference` gives them.
        control: steps of a plain run, repeated in the same way. What fails for these as well says
            nothing of the plan.
        checks: the checks to make; leaving one out makes the verdict `unproven` at best, unless
            the run is bit-equal. Tests leave one out to show that it is the one that sees.
        seeds: losses from several seeds, for plans that claim no more than `statistical`.
    """
    horizon = min(steps_of(plain), steps_of(other))
    is_narrow, claims_exact = claimed is Numerics.PRECISION, claimed is Numerics.EXACT
    made = []
    if "batches" in checks:
        made.append(check_batches(plain, other, plain_repeats))
    if "hyperparameters" in checks:
        made.append(check_hyperparameters(plain, other))
    if "start" in checks:
        made.append(check_start(plain, other, plain_repeats, is_narrow=is_narrow))
    for name, check_steps in _STEPS.items():
        if name in checks:
            made.append(check_steps(plain, other))
    equal = check_bits(plain, other, plain_repeats)
    if equal.state == "passed" and all(map(_is_settled, made)):
        tier = claimed.best_verdict
        evaluation = check_equal_evaluation(plain)
        # Bits that are equal say nothing of what was not read.
        not_read = [evaluation] if evaluation.state == "partial" else []
        verdict = Verdict(tier, equal.evidence, horizon, (*made, *not_read, equal))
        return _with_coverage(verdict, plain, SampledSteps(), is_exact=True)
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
        made.append(check_losses(plain, other))
    if claimed.best_verdict == "statistical" and "seeds" in checks:
        made.append(check_seeds(seeds))
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
