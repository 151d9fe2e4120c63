"""The script lets torch use fewer threads than there are cores.

What it sees   torch.set_num_threads in the script, with less than the cores that it may use.
Why it costs   large products are computed by some of the cores only.
What to do     leave the number to torch, or set as many as there are cores; with several processes
               on one machine, divide the cores among them.
Evidence       convicted by a thread for each core, in turns with the script as it is.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the line that sets the number of threads."""
    facts, means = trace.facts, trace.phase_means()
    # On ranks torchrun asks for one thread each: without the line there would be fewer.
    if (
        facts.ranks > 1
        or not facts.threads_where
        or not 0 < facts.threads < facts.cores
        or facts.device != "cpu"
    ):
        return []
    return [
        Nomination(
            where=facts.threads_where,
            evidence=f"torch uses {facts.threads} of {facts.cores} cores",
            remedies=(),
            advice={},
            at_most_ms=means["forward"] + means["backward"] + means["optimizer"],
            bound=Plan({"all_cores": {}}),
            bound_words=f"with {facts.cores} threads",
            by_hand=f"remove torch.set_num_threads at {facts.threads_where}",
        )
    ]


RULE = Rule(name="few_threads", kind="speed", nominate=nominate)
