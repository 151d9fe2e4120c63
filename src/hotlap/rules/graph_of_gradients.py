"""Each backward keeps a graph of itself.

What it sees   gradients that have a graph: backward(create_graph=True).
Why it costs   every operation of the backward is noted as the forward's are, and its memory is kept
               until the gradients are gone.
What to do     leave create_graph out, unless gradients of gradients are taken afterwards; then use
               torch.autograd.grad for the one that needs it.
Evidence       convicted by leaving it out, in turns with the script as it is.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward whose gradients have a graph."""
    facts, means = trace.facts, trace.phase_means()
    if not facts.keeps_gradient_graph:
        return []
    return [
        Nomination(
            where=facts.backward_where,
            evidence="the gradients that the optimizer gets have a graph of themselves",
            remedies=(),
            advice={},
            at_most_ms=means["backward"] + means["optimizer"],
            bound=Plan({"no_graph_of_gradients": {}}),
            bound_words="with create_graph=False",
            by_hand="leave out create_graph=True where no gradients of gradients are taken",
        )
    ]


RULE = Rule(name="graph_of_gradients", kind="speed", nominate=nominate)
