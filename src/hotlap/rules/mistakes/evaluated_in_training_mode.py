"""The model is evaluated in training mode.

What it sees   forward passes without gradients, or at a line whose gradients no backward uses, of
               a model with dropout or batch norm that is in training mode; not at every step, as
               where one model feeds another. With several optimizers only where something is
               evaluated: the model is seen in evaluation mode, or there is a loader that no step
               reads. Samples of a generator are none, nor is what computes the statistics of batch
               norm again, as `torch.optim.swa_utils.update_bn` does.
Why it matters dropout drops a part of the numbers, so scores are worse than the model is. Batch
               norm uses the statistics of the batch, and updates its running ones with the data
               that is evaluated.
What to do     `model.eval()` before the evaluation, `model.train()` after it.
Evidence       the mode of the model at its forward passes. It costs no time.
"""

from hotlap.rules.mistakes.evaluations import sure_evaluations
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the forward of an evaluation in training mode."""
    return [
        mistake(
            each.where,
            f"{each.in_training_mode} of {each.forwards} forward passes "
            f"{'that no backward pass followed' if each.unused else 'without gradients'} were in "
            "training mode, of a model with dropout or batch norm",
            "`model.eval()` before the evaluation, and `model.train()` after it",
        )
        for each in sure_evaluations(trace)
        if each.in_training_mode
    ]


RULE = Rule(name="evaluated_in_training_mode", kind="mistake", nominate=nominate)
