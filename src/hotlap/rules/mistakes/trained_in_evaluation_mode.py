"""The model is trained in evaluation mode.

What it sees   backward passes whose gradients a step uses, of losses whose forward was in
               evaluation mode, of a model with dropout or batch norm in a part that is trained:
               what is frozen may be kept in evaluation mode.
Why it matters after `model.eval()` dropout drops nothing, and batch norm uses its running
               statistics and does not update them, until `model.train()` is called.
What to do     `model.train()` at the beginning of each epoch, and after each evaluation.
Evidence       the mode of the model at its forward passes. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of losses that were computed in evaluation mode."""
    found = []
    for loss in trace.learning.losses:
        if not loss.in_evaluation_mode:
            continue
        since = ", from the first evaluation on" if loss.after_training else ""
        found.append(
            mistake(
                loss.where,
                f"{loss.in_evaluation_mode} of {loss.backwards} losses that were sent backward "
                f"come of a model in evaluation mode{since}",
                "`model.train()` at the beginning of each epoch, and after each evaluation",
            )
        )
    return found


RULE = Rule(name="trained_in_evaluation_mode", kind="mistake", nominate=nominate)
