"""The optimizer's state holds denormal numbers, with which a CPU computes slowly.

What it sees   a run on a CPU whose optimizer's averages hold a thousand numbers or more that are
               not zero and smaller than the smallest normal one (1.2e-38 in float32).
Why it costs   many CPUs compute with such a number in microcode, many times as long; others, such
               as AMD's EPYC, at full speed. They come from gradients that are always zero, of black
               pixels or unused inputs: an average that shrinks by a tenth in each step is denormal
               after 660 to 830 steps.
What to do     compute them as zero (technique `flush_denormal`); in a script one line before the
               first tensor.
Evidence       how many there are, and after how many steps; convicted at that age, because the
               first steps of a run have none.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.denormals import MANY
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the optimizer whose state holds many denormal numbers."""
    facts = trace.facts
    if facts.device != "cpu" or facts.denormals < MANY or not facts.optimizers:
        return []
    optimizer = facts.optimizers[0]
    kind = optimizer.name.rpartition(".")[2]
    return [
        Nomination(
            where=optimizer.where,
            evidence=(
                f"about {facts.denormals:,} numbers in the state of {kind} are denormal after "
                f"{len(trace.steps):,} steps"
            ),
            remedies=(Plan({"flush_denormal": {}}),),
            advice={
                "flush_denormal": "torch.set_flush_denormal(True) before the first tensor is made"
            },
            at_most_ms=trace.phase_means()["optimizer"],
        )
    ]


RULE = Rule(name="denormal_state", kind="speed", nominate=nominate)
