"""A file is loaded in a way that runs code in it.

What it sees   `torch.load(..., weights_only=False)`.
Why it matters a pickle can run any code when it is loaded. A checkpoint from somebody else, or one
               that somebody could replace, can do anything that the user can.
What to do     `weights_only=True` (the default since torch 2.6) and plain state dicts; name the
               classes that are needed beside tensors with `torch.serialization.add_safe_globals`.
Evidence       the call. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the lines that load in such a way."""
    return [
        mistake(
            where,
            "this line loads a file with weights_only=False: code in the file is run",
            "`torch.load(path, weights_only=True)`, of a file with state dicts",
        )
        for where in trace.learning.unsafe_loads
    ]


RULE = Rule(name="unsafe_load", kind="mistake", nominate=nominate)
