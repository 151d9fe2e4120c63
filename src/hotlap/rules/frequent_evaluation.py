"""The model is evaluated every few steps, and that takes a large part of the time.

What it sees   time sampled below statements in which the model is called in evaluation mode, which
               come several times in an epoch.
Why it costs   evaluation takes the time of as many forwards; it teaches the model nothing.
What to do     evaluate once an epoch, or on a part of the samples in between. Where it follows
               every step the training may use its result, as in reinforcement learning.
Evidence       samples of the running line while steps were timed; medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import nominate_spot
from hotlap.trace.schema import Trace

_LARGE = 0.1
_OFTEN = 2.0
"""Evaluations in an epoch from which on it is often."""
_SHORTEST_EPOCH = 8
"""Steps that an epoch has at least."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the statement in which most of the evaluation happens."""
    spots = [spot for spot in trace.spots if spot.evaluates]
    share = sum(spot.share for spot in spots)
    per_epoch = trace.facts.steps_per_epoch
    if not spots or share < _LARGE or trace.evaluations < 2:
        return []
    every = len(trace.steps) / trace.evaluations
    # Where no epoch has ended, as without a loader, few steps are none.
    if per_epoch / every < _OFTEN if per_epoch else every > _SHORTEST_EPOCH:
        return []
    times = f", {per_epoch / every:.0f} times in an epoch of {per_epoch}" if per_epoch else ""
    is_each = every < 2
    how_often = "after every step" if is_each else f"every {every:.0f} steps"
    unless = ", unless the training uses its result" if is_each else ""
    return [
        nominate_spot(
            trace,
            max(spots, key=lambda spot: spot.share),
            f"the model is evaluated {how_often}{times}",
            f"evaluate once an epoch, or on a part of the samples in between{unless}",
            share=share,
        )
    ]


RULE = Rule(name="frequent_evaluation", kind="speed", nominate=nominate)
