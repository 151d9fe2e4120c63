"""The machine's memory does not suffice, or the limit of this process or its container.

What happened  an allocation on the CPU was refused. Where the system promises more than it has,
               none is refused: the process is killed instead, without a traceback (exit code 137).
What fills it  what is kept from step to step (a list of losses that are still tensors holds every
               step's graph), a data set that is read whole, each worker's copy of it, and batches
               that wait (`prefetch_factor` times workers).
What to do     look at the size that was asked for. Larger than any batch of yours: a shape is
               wrong, often a broadcast of [n] against [n, 1]. Of the size of a batch: use smaller
               micro-batches (technique `micro_batch`), fewer workers, or a memory-mapped file
               (`numpy.load(path, mmap_mode="r")`). `hotlap diagnose --memory SCRIPT` shows what
               the memory is used for; `hotlap train RECIPE --estimate` what a recipe would need.
Limits         `ulimit -v`, a container's memory limit, `--mem` of Slurm: `hotlap env` shows how
               much this process may use.
"""

import re
import resource

from hotlap.failures.death import Death
from hotlap.failures.memory_words import advise_half, say_where
from hotlap.failures.record import Failure
from hotlap.failures.sizes import SIZE, find_size, in_words
from hotlap.host.memory import memory


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    asked = find_size(rf"allocate:? {SIZE}", text)
    if asked is None:
        return []
    shape = re.search(r"with shape (\([^)]*\))", text)
    of = "" if shape is None else f", an array of shape {shape[1]}"
    return [f"{in_words(asked)} were asked for in one piece{of}."]


def locate(death: Death) -> list[str]:
    total, available = memory()
    said = [f"Of {in_words(total)}, {in_words(available)} are available after it."]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        said.append(f"`ulimit -v` limits each process here to {in_words(limit)} of addresses.")
    return [*said, *say_where(death, "cpu")]


def advise(match: "re.Match[str]", death: Death) -> list[str]:
    del match
    return advise_half(death)


FAILURE = Failure(
    name="host_out_of_memory",
    patterns=(
        r"DefaultCPUAllocator: [^\n]*",
        r"Unable to allocate [\d.]+ (?:[KMGTPE]iB|bytes) for an array with shape[^\n]*",
        r"(?m)^MemoryError\b[^\n]*",
        r"\[Errno 12\] Cannot allocate memory",
        r"std::bad_alloc",
    ),
    explain=explain,
    advise=advise,
    locate=locate,
)
