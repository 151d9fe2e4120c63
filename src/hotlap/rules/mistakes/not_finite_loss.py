"""Losses are not finite.

What it sees   losses that are NaN or infinite, while the training continues.
Why it matters one NaN in the loss makes every gradient NaN, and with the next step every weight.
               Where such steps are skipped or replaced, nothing is learned from their samples, and
               their cause remains.
What to do     find the first one (`torch.autograd.set_detect_anomaly(True)` for a few steps): a
               logarithm or a square root of 0, a division by 0, a learning rate that is too high,
               float16.
Evidence       the losses that were sent backward, and what goes into `nan_to_num` in their graph.
               It costs no time.
"""

import math

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of losses that are not finite, or that were made so."""
    by_hand = "find the first one with `torch.autograd.set_detect_anomaly(True)`, and its cause"
    found = [
        mistake(
            loss.where,
            f"{loss.replaced} of {loss.replaced_of} numbers in the first losses were NaN or "
            "infinite, and `nan_to_num` has replaced them: nothing is learned from these samples",
            by_hand,
        )
        for loss in trace.learning.losses
        if loss.replaced
    ]
    bad = sum(not math.isfinite(loss) for loss in trace.losses)
    if bad and trace.learning.losses:
        most = max(trace.learning.losses, key=lambda loss: loss.backwards)
        words = f"{bad} of {len(trace.losses)} losses were NaN or infinite"
        found.append(mistake(most.where, words, by_hand))
    return found[:1]


RULE = Rule(name="not_finite_loss", kind="mistake", nominate=nominate)
