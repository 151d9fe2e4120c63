"""The model is evaluated in training mode.

What it sees   forward passes without gradients, of a model with dropout or batch norm that is in
               training mode; not at every step, as where one model feeds another.
Why it matters dropout drops a part of the numbers, so scores are worse than the model is. Batch
               norm uses the statistics of the batch, and updates its running ones with the data
               that is evaluated.
What to do     `model.eval()` before the evaluation, `model.train()` after it.
Evidence       the mode of the model at its forward passes. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the forward of an evaluation in training mode."""
    return [
        mistake(
            each.where,
            f"{each.in_training_mode} of {each.forwards} forward passes without gradients were in "
            "training mode, of a model with dropout or batch norm",
            "`model.eval()` before the evaluation, and `model.train()` after it",
        )
        for each in trace.learning.evaluations
        if each.in_training_mode and each.passes <= max(1, len(trace.steps) // 4)
    ]


RULE = Rule(name="evaluated_in_training_mode", kind="mistake", nominate=nominate)
