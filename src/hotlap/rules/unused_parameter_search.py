"""Every step is searched for unused parameters, and there are none.

What it sees   `DistributedDataParallel(..., find_unused_parameters=True)` whose search has found no
               parameter without a gradient.
Why it costs   after every forward pass the whole autograd graph is walked, and after every backward
               pass the ranks tell each other which parameters were used: one more sum over ranks.
What to do     leave `find_unused_parameters` away, if no step of the training leaves a part of the
               model unused: a head that is trained later, layers that are skipped at random, an
               expert that no sample chose. Without the search, such a step fails.
Evidence       what the wrapper itself notes of its steps, on the ranks that tell; convicted by
               running the same script without the search.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.event_kinds import WRAP
from hotlap.trace.schema import Trace

NO_SEARCH = Plan({"no_search": {}})
"""Makes the wrapper without the search."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the wrapper that searches, if it has found nothing."""
    facts, sums = trace.facts, trace.facts.sums
    if facts.ranks == 1 or sums is None or not sums.searches:
        return []
    if sums.looks == 0 or sums.unused_bytes:
        return []
    places = [event.where for event in trace.events if event.kind == WRAP]
    places += [optimizer.where for optimizer in facts.optimizers]
    means = trace.phase_means()
    return [
        Nomination(
            where=next(iter(places), ""),
            evidence="find_unused_parameters=True: after each forward the graph is searched for "
            "parameters that the step does not use, and none was found in the "
            f"{sums.looks} steps that were looked at",
            remedies=(),
            advice={},
            # The search follows the forward, and one more sum the backward.
            at_most_ms=means["forward"] + min(facts.exposed_ms, means["backward"]),
            bound=NO_SEARCH,
            bound_words="without the search",
            by_hand="DistributedDataParallel without find_unused_parameters, if no later step "
            "leaves a part of the model unused: such a step would fail",
        )
    ]


RULE = Rule(name="unused_parameter_search", kind="speed", nominate=nominate)
