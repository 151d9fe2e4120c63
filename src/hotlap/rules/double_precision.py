"""The model computes in float64.

What it sees   parameters in float64, often because the data came from NumPy as they were.
Why it costs   twice the bytes and half the arithmetic of a CPU, far less on most GPUs.
What to do     `.float()` on the data and the model, unless the task needs the digits.
Evidence       convicted by computing the model in float32, in turns with the script as it is.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_MOST = 0.5
"""Share of the elements from which on it is the model's precision."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the optimizer of a model that computes in float64."""
    facts, means = trace.facts, trace.phase_means()
    if facts.in_float64 < _MOST or not facts.optimizers:
        return []
    return [
        Nomination(
            where=facts.backward_where,
            evidence=f"{facts.in_float64:.0%} of the model's numbers are float64",
            remedies=(),
            advice={},
            at_most_ms=(means["forward"] + means["backward"] + means["optimizer"]) / 2,
            bound=Plan({"single_precision": {}}),
            bound_words="with the model in float32",
            by_hand="convert the data and the model once, with `.float()`, if the task does not "
            "need float64",
        )
    ]


RULE = Rule(name="double_precision", kind="speed", nominate=nominate)
