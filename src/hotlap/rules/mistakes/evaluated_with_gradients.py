"""The model is evaluated with gradients on.

What it sees   forward passes in evaluation mode that build a graph for gradients, and that no
               backward pass follows; not where the input requires a gradient, which may be asked
               for with `torch.autograd.grad`.
Why it matters the graph keeps all activations until the result is dropped: evaluation takes more
               memory and time than it needs. A result that is kept, as in a sum of losses, keeps
               the graphs of all batches.
What to do     `with torch.no_grad():`, or `torch.inference_mode()`, around the evaluation.
Evidence       the grad mode at forward passes in evaluation mode.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the forward of an evaluation that builds graphs."""
    return [
        mistake(
            each.where,
            f"{each.with_gradients} of {each.forwards} forward passes in evaluation mode built a "
            "graph for gradients that no backward pass used",
            "`with torch.no_grad():` around the evaluation",
        )
        for each in trace.learning.evaluations
        if each.with_gradients and each.passes <= max(1, len(trace.steps) // 4)
    ]


RULE = Rule(name="evaluated_with_gradients", kind="mistake", nominate=nominate)
