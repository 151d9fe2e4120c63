"""A kernel on the GPU failed, and a later, innocent line reports it.

What happened  a kernel read or wrote outside its tensors (`illegal memory access`, `misaligned
               address`), or ended otherwise (`unspecified launch failure`). Python had gone on by
               then: the traceback shows where it waited next.
Look at        your own CUDA, Triton or compiled extensions first, then indices that are computed on
               the GPU, and tensors of more than 2**31 elements. The same error at other lines in
               each run, and in other programs too: the GPU or its memory (`nvidia-smi -q`, Xid
               messages in `dmesg`).
What to do     run again with CUDA_LAUNCH_BLOCKING=1 (`hotlap run --synchronous SCRIPT`), whose
               traceback has the right line; `compute-sanitizer python train.py` names the kernel
               and the address. Restart the process: its GPU state cannot be used any more.
"""

import os
import re

from hotlap.failures.death import Death
from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    del match
    return [
        "Unless CUDA_LAUNCH_BLOCKING=1 was set, the line in the traceback may be an innocent one: "
        "run again with it, as `hotlap run --synchronous SCRIPT` does."
    ]


def locate(death: Death) -> list[str]:
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0") and death.place is not None:
        return [f"Launches were synchronous, so the line is the right one: {death.place}."]
    return []


FAILURE = Failure(
    name="kernel_failed",
    patterns=(
        r"(?:CUDA|HIP) error: an illegal memory access was encountered",
        r"(?:CUDA|HIP) error: (?:misaligned address|unspecified launch failure|"
        r"an illegal instruction was encountered|invalid program counter)",
        r"(?:CUBLAS|CUDNN)_STATUS_EXECUTION_FAILED",
    ),
    explain=explain,
    locate=locate,
)
