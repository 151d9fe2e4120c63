"""The model is evaluated in training mode.

What it sees   forward passes without gradients, of a model with dropout or batch norm that is in
               training mode; not at every step, as where one model feeds another. With several
               optimizers only where something is evaluated: the model is seen in evaluation mode,
               or there is a loader that no step reads. Samples of a generator are none.
Why it matters dropout drops a part of the numbers, so scores are worse than the model is. Batch
               norm uses the statistics of the batch, and updates its running ones with the data
               that is evaluated.
What to do     `model.eval()` before the evaluation, `model.train()` after it.
Evidence       the mode of the model at its forward passes. It costs no time.
"""

from hotlap.rules.mistakes.windows import has_one_optimizer
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the forward of an evaluation in training mode."""
    has_held_out = any(not loader.training for loader in trace.facts.loaders)
    may_sample = not has_one_optimizer(trace) and not has_held_out
    return [
        mistake(
            each.where,
            f"{each.in_training_mode} of {each.forwards} forward passes without gradients were in "
            "training mode, of a model with dropout or batch norm",
            "`model.eval()` before the evaluation, and `model.train()` after it",
        )
        for each in trace.learning.evaluations
        if each.in_training_mode and each.passes <= max(1, len(trace.steps) // 4)
        if each.is_evaluated or not may_sample
    ]


RULE = Rule(name="evaluated_in_training_mode", kind="mistake", nominate=nominate)
