"""torch.compile compiles again in later steps.

What it sees   several graphs that torch.compile makes after the first ten steps.
Why it costs   each new shape, number or object that a compiled function depends on is compiled for,
               in seconds; after eight times torch gives up, and runs that function as it is.
What to do     give every batch one shape (drop_last=True, lengths padded to few sizes), keep Python
               numbers that change out of what is compiled, or compile with dynamic=True.
Evidence       the graphs that were made while steps were timed, and torch's own clock of them. No
               trial measures it: how often it happens again is not known.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

SEVERAL = 3
"""A last, smaller batch and an evaluation may each need a graph of their own, once."""
WORTH_SAYING = 0.05


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the hottest line of the forward, if functions are compiled again and again."""
    counts, mean = trace.process, trace.step_ms()["mean"]
    if counts is None or counts.graphs < SEVERAL:
        return []
    compile_ms = counts.compile_ms / counts.steps
    if compile_ms < WORTH_SAYING * mean:
        return []
    lines = [line for line in trace.lines if line.phase == "forward"]
    hottest = max(lines, key=lambda line: line.share, default=None)
    return [
        Nomination(
            where=trace.facts.backward_where if hottest is None else hottest.where,
            evidence=(
                f"torch.compile made {counts.graphs} graphs in {counts.steps:,} steps after the "
                f"first ones, which took {compile_ms:.2f} of {mean:.2f} ms a step"
            ),
            remedies=(),
            advice={},
            at_most_ms=compile_ms,
            by_hand=(
                "give every batch one shape (drop_last=True, few padded lengths), keep Python "
                "numbers that change out of what is compiled, or use torch.compile(dynamic=True)"
            ),
        )
    ]


RULE = Rule(name="late_compiling", kind="speed", nominate=nominate)
