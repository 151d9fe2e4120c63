"""The batch size grew during the run, and the learning rate did not.

What it sees   the samples of each optimizer step, accumulation included, and the learning rate: a
               size that is at least 1.5 times an earlier one, which never comes again, at a rate
               that is not higher.
Why it matters the mean over more samples has less noise, and an epoch has fewer steps. At the same
               rate each epoch then moves the weights less. This may be meant: a growing batch size
               at a constant rate cools a run down as a decaying rate does at a constant batch size
               (Smith et al., 2018, "Don't Decay the Learning Rate, Increase the Batch Size").
What to do     nothing if that is meant. To learn as before with the larger batch size, multiply the
               rate by its growth for SGD (Goyal et al., 2017) or by the square root of its growth
               for Adam (Malladi et al., 2022), with a warm-up of some hundred steps.
Evidence       counts of samples, and the optimizer's rate. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_GROWTH = 1.5
_LEAST_STEPS = 4
"""Of each size: the last batch of an epoch is smaller."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of the larger batches."""
    sizes = [each for each in trace.learning.batch_sizes if each.steps >= _LEAST_STEPS]
    found = [
        (before, after)
        for before in sizes
        for after in sizes
        if after.samples >= _GROWTH * before.samples
        and after.first_step > before.last_step
        and after.first_rate <= before.last_rate
    ]
    if not found:
        return []
    before, after = max(found, key=lambda pair: pair[1].samples / pair[0].samples)
    growth = after.samples / before.samples
    return [
        mistake(
            after.where,
            f"the batch size grew from {before.samples} to {after.samples} at step "
            f"{after.first_step + 1}, and the learning rate did not: {before.last_rate:.3g} "
            f"before, {after.first_rate:.3g} after",
            "keep it if this is meant to cool the run down; to learn as before, multiply the rate "
            f"by {growth:.3g} for SGD, or by {growth**0.5:.3g} for Adam",
        )
    ]


RULE = Rule(name="grown_batch", kind="mistake", nominate=nominate)
