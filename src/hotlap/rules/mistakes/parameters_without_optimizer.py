"""Parameters that get gradients are in no optimizer.

What it sees   parameters of a trained module that have a gradient, and that no optimizer holds;
               also those of layers that a module keeps in a plain list or dict.
Why it matters they keep their initial values. What they cost is paid, and nothing is learned by
               them.
What to do     give the optimizer the parameters of all modules; keep layers in `nn.ModuleList` or
               `nn.ModuleDict`; switch gradients off for those that are meant to stay as they are
               (`requires_grad_(False)`).
Evidence       which tensors have gradients, and which the optimizers hold. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of an optimizer beside which parameters get gradients for nothing."""
    found = [each for each in trace.facts.optimizers if each.left and not each.lost]
    return [
        mistake(
            optimizer.where,
            f"{optimizer.left} tensors of {optimizer.left_in} have a gradient, and are in no "
            "optimizer",
            "add them to the optimizer (layers of a plain list: `nn.ModuleList`), or "
            "`requires_grad_(False)` if they are meant to stay",
        )
        for optimizer in found[:1]
    ]


RULE = Rule(name="parameters_without_optimizer", kind="mistake", nominate=nominate)
