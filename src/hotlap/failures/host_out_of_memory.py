"""The machine's memory does not suffice, or the limit of this process or its container.

What happened  an allocation on the CPU was refused. Where the system promises more than it has,
               none is refused: the process is killed instead, without a traceback (exit code 137).
What fills it  what is kept from step to step (a list of losses that are still tensors holds every
               step's graph), a data set that is read whole, each worker's copy of it, and batches
               that wait (`prefetch_factor` times workers).
What to do     look at the size that was asked for. Larger than any batch of yours: a shape is
               wrong, often a broadcast of [n] against [n, 1]. Of the size of a batch: use smaller
               micro-batches (technique `micro_batch`), fewer workers, or a memory-mapped file
               (`numpy.load(path, mmap_mode="r")`).
Limits         `ulimit -v`, a container's memory limit, `--mem` of Slurm: `hotlap env` shows how
               much this process may use.
"""

import re

from hotlap.failures.record import Failure
from hotlap.failures.sizes import SIZE, find_size, in_words


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    asked = find_size(rf"allocate:? {SIZE}", text)
    if asked is None:
        return []
    shape = re.search(r"with shape (\([^)]*\))", text)
    of = "" if shape is None else f", an array of shape {shape[1]}"
    return [f"{in_words(asked)} were asked for in one piece{of}."]


FAILURE = Failure(
    name="host_out_of_memory",
    patterns=(
        r"DefaultCPUAllocator: [^\n]*",
        r"_ArrayMemoryError: Unable to allocate [^\n]*",
        r"(?m)^MemoryError\b[^\n]*",
        r"\[Errno 12\] Cannot allocate memory",
        r"std::bad_alloc",
    ),
    explain=explain,
)
