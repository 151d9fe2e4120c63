"""Something is written to a file in each step, or every few of them.

What it sees   time sampled below a function that writes files, such as torch.save, between updates.
Why it costs   the model waits until everything is copied, serialized and written.
What to do     save every some minutes or epochs; log few numbers, every some steps.
Evidence       samples of the running line while steps were timed; medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_saving, nominate_beside
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each statement of the loop that writes files."""
    return nominate_beside(
        trace,
        is_saving,
        "files are written by {spot.library}",
        "save less often at {spot.statement}: every some minutes, or at the end of an epoch",
    )


RULE = Rule(name="frequent_saving", kind="speed", nominate=nominate)
