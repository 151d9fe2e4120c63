"""/dev/shm is full: worker processes hand their batches over through it.

What happened  each batch of a DataLoader with workers lies in shared memory until it is used:
               workers x `prefetch_factor` batches at once. Containers have 64 MiB of it by default.
               A full one ends the worker with a bus error.
Look at        `df -h /dev/shm`, and the bytes of a batch.
What to do     start the container with `--shm-size=8g` or `--ipc=host` (Kubernetes: an `emptyDir`
               with `medium: Memory` at /dev/shm); or fewer workers, a smaller `prefetch_factor`,
               smaller batches. `hotlap env` names a small /dev/shm. With hotlap's technique
               `workers`, batches of up to 1 MiB do not use it.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    del match
    return []


FAILURE = Failure(
    name="shared_memory_full",
    patterns=(
        r"Unexpected bus error encountered in worker[^\n]*",
        r"DataLoader worker \(pid \d+\) is killed by signal: Bus error[^\n]*",
        r"unable to (?:open|write|mmap|resize)[^\n]*(?:shared memory|/torch_|/dev/shm)[^\n]*",
        r"No space left on device[^\n]*/dev/shm[^\n]*",
    ),
    explain=explain,
)
