"""Gradients are summed over ranks while nothing else is computed.

What it sees   `DistributedDataParallel`, whose backward has ended on the first rank while its
               gradients are still being summed over all ranks.
Why it costs   the optimizer waits for the sums. Those that are under way during the backward cost
               little; what comes after it costs all of its time.
What to do     where ranks have unequal work (batches of different sizes, one slow reader, a rank
               that logs or saves), give them equal work: the others wait in this sum. Else fewer
               sums: larger batches, or several backwards under `model.no_sync()` for each step; or
               another `bucket_cap_mb`, so that sums begin earlier.
Evidence       the wrapper's own clock on the first rank: the time of the sums, less what the
               backward overlaps. A wait for a slower rank is part of it. No trial measures it.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.event_kinds import BACKWARD
from hotlap.trace.schema import Trace

WORTH_SAYING = 0.1


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward, if the sums that follow it take a share of the step."""
    mean = trace.step_ms()["mean"]
    # The wrapper's mean holds the first steps, too.
    exposed = min(trace.facts.exposed_ms, trace.phase_means()["backward"])
    if trace.facts.ranks == 1 or exposed < WORTH_SAYING * mean:
        return []
    backwards = [event.where for event in trace.events if event.kind == BACKWARD]
    steps = [optimizer.where for optimizer in trace.facts.optimizers]
    return [
        Nomination(
            where=next(iter([*backwards, *steps]), ""),
            evidence=f"after its backward, the first of {trace.facts.ranks} ranks waits "
            f"{exposed:.2f} of {mean:.2f} ms a step for the sum of the gradients, or for a slower "
            "rank",
            remedies=(),
            advice={},
            at_most_ms=exposed,
            by_hand="equal work for all ranks; larger batches, or `model.no_sync()` around all but "
            "the last backward of a step; or a smaller bucket_cap_mb",
        )
    ]


RULE = Rule(name="exposed_communication", kind="speed", nominate=nominate)
