"""The model is evaluated with gradients on.

What it sees   forward passes in evaluation mode that build a graph for gradients, and that no
               backward pass follows; not where the input requires a gradient, which may be asked
               for with `torch.autograd.grad`. In training mode, those of a line none of whose
               outputs a backward pass reaches; with several optimizers only where something is
               evaluated, as for `evaluated_in_training_mode`.
Why it matters the graph keeps all activations until the result is dropped: evaluation takes more
               memory and time than it needs. A result that is kept, as in a sum of losses, keeps
               the graphs of all batches.
What to do     `with torch.no_grad():`, or `torch.inference_mode()`, around the evaluation.
Evidence       the grad mode at forward passes, and whether a backward pass reaches their outputs.
"""

from hotlap.rules.mistakes.evaluations import rare_evaluations, sure_evaluations
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the forward of an evaluation that builds graphs."""
    found = [(each, each.with_gradients, "evaluation") for each in rare_evaluations(trace)]
    found += [(each, each.unused, "training") for each in sure_evaluations(trace)]
    return [
        mistake(
            each.where,
            f"{count} of {each.forwards} forward passes in {mode} mode built a graph for gradients "
            "that no backward pass used",
            "`with torch.no_grad():` around the evaluation",
        )
        for each, count, mode in found
        if count
    ]


RULE = Rule(name="evaluated_with_gradients", kind="mistake", nominate=nominate)
