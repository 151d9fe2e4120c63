"""cuDNN or cuBLAS could not begin its work on the GPU.

What happened  the library asks the driver for memory of its own when it is first used. Most often
               there is none left; torch's own figure does not include it. Else an earlier kernel
               has failed (see `index_out_of_range`), or two versions of the library are mixed.
Look at        `nvidia-smi`: is the GPU full? Is the batch size near the largest that fits? Does
               LD_LIBRARY_PATH lead to another cuDNN than torch's own?
What to do     use smaller micro-batches (technique `micro_batch`), end other processes on the GPU;
               remove LD_LIBRARY_PATH; run again with CUDA_LAUNCH_BLOCKING=1, to see whether an
               earlier line fails. One step on a small batch tells which of them it is.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    if "ALLOC_FAILED" in match.group():
        return ["The library found no memory for itself on the GPU."]
    return []


FAILURE = Failure(
    name="library_not_initialized",
    patterns=(r"(?:CUDNN|CUBLAS)_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)",),
    explain=explain,
)
