"""Memory that a step frees goes back to the system, and is asked for again.

What it sees   a run on a CPU in whose every step the system hands out a hundred pages or more, and
               works for a share of the step.
Why it costs   the C library maps a large tensor for itself and unmaps it when it is freed; the
               system clears each page anew when it is first written to.
What to do     let the process keep what it frees (technique `host_allocator`); for a script, two
               variables in its environment.
Evidence       page faults, and the system's time, per step; convicted by running the same script
               with memory kept.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.paging import MANY
from hotlap.trace.schema import Trace

WORTH_A_TRIAL = 0.03


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the training loop, if its steps are handed many pages."""
    facts, mean = trace.facts, trace.step_ms()["mean"]
    if facts.device != "cpu" or facts.page_faults < MANY:
        return []
    if facts.system_ms < WORTH_A_TRIAL * mean or not facts.optimizers:
        return []
    return [
        Nomination(
            where=facts.optimizers[0].where,
            evidence=(
                f"the system hands out {facts.page_faults:,.0f} pages and works "
                f"{facts.system_ms:.2f} of {mean:.2f} ms in each step"
            ),
            remedies=(Plan({"host_allocator": {}}),),
            advice={
                "host_allocator": (
                    "start it with MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 in the "
                    "environment"
                )
            },
            at_most_ms=facts.system_ms,
            is_setting=True,
        )
    ]


RULE = Rule(name="returned_memory", kind="speed", nominate=nominate)
