"""Parameters that the optimizer holds never get a gradient.

What it sees   parameters of a trained module that are in an optimizer and have no gradient at any
               step.
Why it matters the loss does not depend on them: a layer that is not called, an output that is not
               used, or a graph that is cut by `.detach()`, `.item()` or NumPy. They keep their
               initial values.
What to do     use the layer, mend the cut, or take the parameters out of the model.
Evidence       the gradients at each step that was observed. It costs no time.
"""

from hotlap.rules.mistakes.zeroed_before_step import zeroing_line
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_LEAST = 3


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of an optimizer with parameters that are never updated."""
    if zeroing_line(trace):
        # Backward gives them one.
        return []
    return [
        mistake(
            each.where,
            f"{each.tensors} of {each.of} parameter tensors had no gradient in {each.steps} steps, "
            f"among them {', '.join(each.names)}",
            "use these layers for the loss, or take them out of the model",
        )
        for each in trace.learning.without_gradient
        if each.steps >= _LEAST
    ]


RULE = Rule(name="parameters_without_gradient", kind="mistake", nominate=nominate)
