"""A step left parameters of the model unused, and `DistributedDataParallel` waited for them.

What happened  the wrapper sums the gradients of all parameters over the ranks, and a step is over
               when each has come. In the step before, some parameters took no part in the loss: a
               head that is not used, layers that are skipped, an output that the loss leaves out.
Look at        which parameters: the message counts them as `model.named_parameters()` does, and
               `TORCH_DISTRIBUTED_DEBUG=DETAIL` prints their names. Does the loss use all that
               `forward` returns? Is it computed from the wrapper's own output, `model(x)`, and not
               from that of `model.module(x)`?
What to do     freeze what is never used (`requires_grad_(False)`) before the model is wrapped; use
               all outputs in the loss; or, where what is used differs from step to step,
               `find_unused_parameters=True`, which searches the graph in every step.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    found = match.groupdict()
    if found.get("names"):
        return [f"{found['names'].strip()}: no gradient on this rank."]
    places = (found.get("places") or "").split()
    if not places:
        return []
    first, verb = ("Parameter", "has") if len(places) == 1 else ("Parameters", "have")
    return [f"{first} {', '.join(places)} of `model.parameters()` {verb} no gradient on this rank."]


FAILURE = Failure(
    name="parameters_unused",
    patterns=(
        r"Parameters which did not receive grad for rank \d+: (?P<names>[^\n]+)",
        r"Parameter indices which did not receive grad for rank \d+: (?P<places>[\d ]+)",
        r"Expected to have finished reduction in the prior iteration[^\n]*",
    ),
    explain=explain,
)
