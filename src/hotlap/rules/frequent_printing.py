"""Something is printed or logged in each step, or every few of them.

What it sees   time sampled below print, logging or the text of a tensor, between updates.
Why it costs   a tensor that is printed is brought to the host, sorted into columns and formatted;
               on a GPU the program waits for it.
What to do     print every hundred steps or so, and numbers rather than tensors.
Evidence       samples of the running line while steps were timed; medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_printing, nominate_beside
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each statement of the loop that prints."""
    return nominate_beside(
        trace,
        is_printing,
        "texts are made and printed",
        "print less often at {spot.statement}, and numbers instead of tensors",
    )


RULE = Rule(name="frequent_printing", kind="speed", nominate=nominate)
