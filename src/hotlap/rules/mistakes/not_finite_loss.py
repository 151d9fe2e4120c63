"""Losses are not finite.

What it sees   losses that are NaN or infinite, while the training goes on.
Why it matters one NaN in the loss makes every gradient NaN, and with the next step every weight.
               Where such steps are skipped or replaced, nothing is learned from their samples, and
               their cause remains.
What to do     find the first one (`torch.autograd.set_detect_anomaly(True)` for a few steps): a
               logarithm or a square root of 0, a division by 0, a learning rate that is too high,
               float16.
Evidence       the losses that were sent backward. It costs no time.
"""

import math

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of losses that are not finite."""
    bad = sum(not math.isfinite(loss) for loss in trace.losses)
    if not bad or not trace.learning.losses:
        return []
    most = max(trace.learning.losses, key=lambda loss: loss.backwards)
    return [
        mistake(
            most.where,
            f"{bad} of {len(trace.losses)} losses were NaN or infinite",
            "find the first one with `torch.autograd.set_detect_anomaly(True)`, and its cause",
        )
    ]


RULE = Rule(name="not_finite_loss", kind="mistake", nominate=nominate)
