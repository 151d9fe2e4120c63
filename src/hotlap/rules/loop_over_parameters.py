"""A loop of Python goes over the parameters of a model in each step.

What it sees   time sampled in a `for` over `parameters()` and the like, between updates or in the
               forward: clipping, averages of weights, weight decay as a loss, statistics.
Why it costs   each tensor costs some calls of Python and operators of a few microseconds, however
               small it is.
What to do     use what does the same for all tensors at once: clip_grad_norm_ with foreach, the
               optimizer's own weight_decay, torch._foreach_mul_ and the like,
               torch.optim.swa_utils.AveragedModel with a multi-tensor average; statistics every
               hundred steps.
Evidence       samples of the running line while steps were timed; a loss is taken to cost the same
               share of the backward as of the forward. Medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_costly, nominate_spot, share_with_backward
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each loop over parameters."""
    return [
        nominate_spot(
            trace,
            spot,
            f"tensors are visited one by one in `{spot.loop}` ({spot.loop_where})",
            f"do the same for all tensors at once instead of the loop at {spot.loop_where}: "
            "torch.nn.utils.clip_grad_norm_, an optimizer's weight_decay, torch._foreach_* or "
            "torch.optim.swa_utils; or do it every some steps",
            share=share_with_backward(trace, spot),
        )
        for spot in trace.spots
        if spot.over_parameters
        and spot.phase in ("other", "forward")
        and not spot.evaluates
        and is_costly(spot)
    ]


RULE = Rule(name="loop_over_parameters", kind="speed", nominate=nominate)
