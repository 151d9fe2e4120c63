"""The model's output is normalized before a loss that normalizes it.

What it sees   a softmax whose output goes into `cross_entropy`, or a sigmoid whose output goes into
               `binary_cross_entropy_with_logits`.
Why it matters these losses take logits and apply softmax or sigmoid themselves. Of numbers between
               0 and 1 the second softmax is almost flat: gradients are small, and the loss cannot
               come near 0 however sure the model is.
What to do     give the loss the logits; apply softmax only where probabilities are wanted.
Evidence       the graph of the loss. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_LOSSES = {
    "softmax": "cross entropy, which applies softmax itself",
    "sigmoid": "binary cross entropy with logits, which applies a sigmoid itself",
}


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of a loss of probabilities."""
    return [
        mistake(
            loss.where,
            f"the output of a {loss.normalized_twice} goes into {_LOSSES[loss.normalized_twice]}",
            f"remove the {loss.normalized_twice} from the model: the loss takes logits",
        )
        for loss in trace.learning.losses
        if loss.normalized_twice
    ]


RULE = Rule(name="normalized_twice", kind="mistake", nominate=nominate)
