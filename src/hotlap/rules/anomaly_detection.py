"""Anomaly detection was left on.

What it sees   torch.autograd.set_detect_anomaly or detect_anomaly, on at a backward.
Why it costs   each operator of the forward notes the Python stack that called it, and each gradient
               is searched for NaN: it is meant for debugging.
What to do     switch it on only to find the operator that gave NaN.
Evidence       convicted by keeping it off, in turns with the script as it is.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the line that switches anomaly detection on."""
    facts, means = trace.facts, trace.phase_means()
    if not facts.finds_anomalies:
        return []
    return [
        Nomination(
            where=facts.anomalies_where or facts.backward_where,
            evidence="anomaly detection is on at each backward",
            remedies=(),
            advice={},
            at_most_ms=means["forward"] + means["backward"],
            bound=Plan({"no_anomaly_detection": {}}),
            bound_words="with anomaly detection off",
            by_hand="remove it, or put it behind an option for debugging",
        )
    ]


RULE = Rule(name="anomaly_detection", kind="speed", nominate=nominate)
