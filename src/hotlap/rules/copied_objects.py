"""Whole objects, such as a model or the state of an optimizer, are copied in each step.

What it sees   time sampled below copy.copy or copy.deepcopy, between updates.
Why it costs   every tensor is allocated and written again, however little has changed.
What to do     copy when there is something new to keep, for instance after an evaluation that is
               better than all before; keep what is needed, such as `model.state_dict()`, and write
               into the same memory with `copy_`.
Evidence       samples of the running line while steps were timed; medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_copying, nominate_beside
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each statement of the loop that copies objects."""
    return nominate_beside(
        trace,
        is_copying,
        "objects are copied whole",
        "copy less often at {spot.statement}, for instance when an evaluation was better than all "
        "before, and only what is needed",
    )


RULE = Rule(name="copied_objects", kind="speed", nominate=nominate)
