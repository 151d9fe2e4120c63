"""Every epoch has the same order of samples, although the sampler shuffles.

What it sees   a shuffling `DistributedSampler` that is in the same epoch, with the same seed, each
               time its loader is begun.
Why it matters the order follows from seed and epoch alone, so every epoch shows the same samples in
               the same batches, and to the same rank. Training learns from fewer combinations than
               is meant, and each rank sees only its own part of the data, in all epochs.
What to do     `sampler.set_epoch(epoch)` before each epoch. Lightning does so itself; Accelerate
               does so for the sampler that it makes.
Evidence       seed and epoch of the sampler in each pass in which steps were taken. It costs no
               time.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the loop over a loader whose passes all have the same order."""
    return [
        Nomination(
            where=loader.where,
            evidence=f"the shuffled order of the DistributedSampler follows from its seed and its "
            f"epoch, which were {loader.orders[0][0]} and {loader.orders[0][1]} in each of the "
            f"{len(loader.orders)} epochs that were seen: they have the same order",
            remedies=(),
            advice={},
            at_most_ms=0.0,
            by_hand="`sampler.set_epoch(epoch)` before each epoch",
        )
        for loader in trace.facts.training_loaders
        if len(loader.orders) > 1 and len({tuple(order) for order in loader.orders}) == 1
    ]


RULE = Rule(name="repeated_order", kind="mistake", nominate=nominate)
