"""A tuning under a limit of memory: where the plain recipe does not fit, in micro-batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hotlap.errors import UsageError
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun, Subject
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import TIERS, Verdict
from hotlap.plan import Plan
from hotlap.tuning.micro_batches.call import find
from hotlap.tuning.micro_batches.kept import kept_micro_batch
from hotlap.tuning.micro_batches.trials import MicroBatchTrials
from hotlap.tuning.result import Tuning


@dataclass(frozen=True)
class Fitted:
    """A subject whose plain run fits."""

    subject: Subject
    base: Plan
    """What it needs for that, empty if nothing."""
    words: str = ""
    """Why, in words."""


def memory_given(text: str | None) -> int | None:
    """Return the bytes that `--memory` was given, None without it.

    Raises:
        UsageError: it is no size.
    """
    from hotlap.engine.memory.estimate import memory_size

    return None if text is None else memory_size(text)


def fit_plain(
    subject: Subject,
    host: Host,
    memory: int | None,
    *,
    accept: str,
    again: bool,
    techniques: Sequence[str],
    progress: Callable[[str], None],
) -> Fitted:
    """Return the subject with the micro-batches without which it does not fit into memory.

    Args:
        subject: a script is given back as it is: hotlap cannot split its steps.
        host: where.
        memory: bytes to fit into, None for no limit.
        accept: the weakest verdict that is good enough.
        again: make the trials again.
        techniques: techniques from outside, as `module:NAME`.
        progress: called with a line now and then.

    Raises:
        UsageError: only an exact plan is accepted, and none fits.
        RunError: not even a micro-batch of one sample fits.
    """
    if memory is None or not isinstance(subject, RecipeRun):
        return Fitted(subject, Plan())
    progress(f"does the plain recipe fit into {memory / 2**20:,.0f} MiB?")
    with Lab(subject, techniques=tuple(techniques)) as lab:
        if MicroBatchTrials(lab, Plan(), memory, progress).fits_as_it_is():
            return Fitted(subject, Plan())
    kept = kept_micro_batch(
        subject, Plan(), host, memory=memory, techniques=techniques, again=again
    )
    found = find(
        subject, Plan(), kept, memory=memory, techniques=tuple(techniques), progress=progress
    )
    if accept == "exact":
        raise UsageError(
            f"the recipe fits into {memory / 2**20:,.0f} MiB only in micro-batches of at most "
            f"{found.largest} samples. These sum gradients in another order, so no plan with them "
            "is exact, as --accept exact demands. Use --accept rounding, or a larger --memory."
        )
    base = found.plan()
    words = f"the plain recipe does not fit into {memory / 2**20:,.0f} MiB; with {base} it does"
    progress(words)
    return Fitted(replace(subject, base=base), base, words)


def on_base(found: Tuning, fitted: Fitted) -> Tuning:
    """Return a tuning with what all its plans needed to fit as a part of them.

    Its verdicts are no better than `rounding`, which is what micro-batches are.
    """
    if not fitted.base or found.base:
        return found

    def whole(plan: Plan) -> Plan:
        return Plan({**fitted.base.techniques, **plan.techniques})

    def weaker(verdict: Verdict) -> Verdict:
        evidence = f"{fitted.words}, so it was compared with that: {verdict.evidence}"
        tier = max(verdict.tier, "rounding", key=TIERS.index)
        return replace(verdict, tier=tier, evidence=evidence)

    return replace(
        found,
        base=fitted.base,
        plan=whole(found.plan),
        verdict=weaker(found.verdict),
        proven_plans=tuple(
            replace(
                each,
                plan=whole(each.plan),
                verdict=weaker(each.verdict),
                tier=max(each.tier, "rounding", key=TIERS.index),
            )
            for each in found.proven_plans
        ),
        trials=tuple(replace(each, plan=whole(each.plan)) for each in found.trials),
    )
