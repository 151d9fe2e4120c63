"""The forward or the loss is computed in a loop of Python, element by element.

What it sees   time sampled in the forward in a `for`, `while` or comprehension over samples, time
               steps or channels; a loop over layers does not count.
Why it costs   an operator on little data takes as long as its call: some microseconds. The backward
               does as many small operations again.
What to do     compute the whole batch, sequence or set of channels at once: a batch dimension, an
               nn.GRU or nn.LSTM instead of its cell, a convolution with groups, broadcasting,
               torch.vmap; torch.compile where none of these can be had.
Evidence       samples of the running line while steps were timed, and of the backward the same
               share as of the forward; medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_costly, nominate_spot, share_with_backward
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each loop over elements in the forward."""
    return [
        nominate_spot(
            trace,
            spot,
            f"the forward goes element by element in `{spot.loop}` ({spot.loop_where}), its "
            "backward included",
            f"compute all elements at once instead of the loop at {spot.loop_where}: a batch "
            "dimension, nn.GRU or nn.LSTM instead of a cell, groups of a convolution, "
            "broadcasting or torch.vmap",
            share=share_with_backward(trace, spot),
        )
        for spot in trace.spots
        if spot.phase == "forward" and spot.loop
        if not spot.over_parameters and not spot.evaluates and is_costly(spot)
    ]


RULE = Rule(name="loop_over_elements", kind="speed", nominate=nominate)
