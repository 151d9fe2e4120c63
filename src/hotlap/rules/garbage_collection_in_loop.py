"""The garbage collector is called for between steps, or asked for all objects that live.

What it sees   time sampled at gc.collect() or in a loop over gc.get_objects(), between updates.
Why it costs   each call visits every object of the process: some ten to hundred milliseconds where
               many libraries are imported. It frees no tensor that is still referred to.
What to do     remove the call: what is no longer referred to is freed at once, without the
               collector; only cycles wait for it, and it runs by itself.
Evidence       samples of the running line while steps were timed; medium confidence at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_collecting, nominate_beside
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each statement of the loop that calls the collector."""
    return nominate_beside(
        trace,
        is_collecting,
        "all objects of the process are visited",
        "remove `{spot.text}`, or do it less often",
    )


RULE = Rule(name="garbage_collection_in_loop", kind="speed", nominate=nominate)
