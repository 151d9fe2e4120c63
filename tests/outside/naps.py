"""The loop naps before each batch.

What it sees   a share of the step that is spent waiting for data.
Why it costs   nothing is computed meanwhile.
What to do     shorter naps (technique `no_nap`).
Evidence       the wait per step; convicted by running the same script with shorter naps.
"""

from hotlap.plan import Plan
from hotlap.rules import Nomination, Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    waits = trace.phase_means()["data"]
    loaders = trace.facts.training_loaders
    if not loaders or waits < 0.1 * trace.step_ms()["mean"]:
        return []
    return [
        Nomination(
            where=loaders[0].where,
            evidence=f"{waits:.1f} ms of each step are waited for",
            remedies=(Plan({"no_nap": {}}),),
            advice={"no_nap": "remove the call of sleep"},
            at_most_ms=waits,
        )
    ]


RULE = Rule(name="naps", kind="speed", nominate=nominate)
