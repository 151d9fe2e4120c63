"""Ranks waited for each other longer than the process group's time-out.

What happened  every rank must call the same collectives in the same order. One was late, is in
               another branch, or is dead; the others wait, and the message is of one that waited.
Look at        each rank's own log: the one that does not complain is the one to look at. Usual
               causes: ranks with different numbers of batches (uneven data, `break` on one rank);
               an evaluation, a download or a save on rank 0 while the others continue; a parameter
               without a gradient on one rank; an error that was caught on one rank only.
What to do     give every rank the same number of steps (`drop_last=True`, or `join`); call
               `dist.barrier()` after work of rank 0 alone, and a longer
               `init_process_group(timeout=...)` if that work is really long. `py-spy dump --pid` of
               each rank shows where it waits; TORCH_DISTRIBUTED_DEBUG=DETAIL names the first
               collective that differs.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    nccl = re.search(r"OpType=(\w+).*?Timeout\(ms\)=(\d+)", text)
    if nccl is not None:
        return [f"The collective was {nccl[1]}; the time-out is {int(nccl[2]) / 1000:g} s."]
    gloo = re.search(r"Timed out waiting (\d+)ms", text)
    if gloo is not None:
        return [f"The time-out is {int(gloo[1]) / 1000:g} s."]
    return []


FAILURE = Failure(
    name="collective_timeout",
    patterns=(
        r"Watchdog caught collective operation timeout:[^\n]*",
        r"Timed out waiting \d+ms for (?:recv|send) operation to complete",
        r"Some NCCL operations have failed or timed out[^\n]*",
    ),
    explain=explain,
)
