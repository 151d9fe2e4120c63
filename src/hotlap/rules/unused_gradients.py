"""Gradients are computed for parameters that no optimizer holds.

What it sees   parameters of a trained module that have a gradient and are in no optimizer, such
               as those of a pretrained backbone under a new last layer.
Why it costs   their backward is computed, and their gradients are written, for nothing.
What to do     requires_grad_(False) before training; run a part that stays as it is, and that comes
               first, under torch.no_grad(), or once for all samples.
Evidence       convicted by computing none of them, in turns with the script as it is.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the optimizer beside which parameters get gradients for nothing."""
    backward = trace.phase_means()["backward"]
    found = [each for each in trace.facts.optimizers if each.left and not each.lost]
    return [
        Nomination(
            where=optimizer.where,
            evidence=f"{optimizer.left} tensors of {optimizer.left_in} get a gradient, and are in "
            "no optimizer",
            remedies=(),
            advice={},
            at_most_ms=backward,
            bound=Plan({"no_unused_gradients": {}}),
            bound_words="without these gradients",
            by_hand="call requires_grad_(False) on them if they are meant to stay as they are",
        )
        for optimizer in found[:1]
    ]


RULE = Rule(name="unused_gradients", kind="speed", nominate=nominate)
