"""The process may not open more files.

What happened  each tensor that a worker hands over is an open file in the training process as long
               as it lives: keeping batches of many tensors uses the limit up, often 1024. So do
               files that a data set opens and does not close.
Look at        `ulimit -n`, and `ls /proc/PID/fd | wc -l` while it runs: does it grow?
What to do     copy what you keep from a batch (`copy.deepcopy(batch)`, `tensor.clone()`) and let
               the batch go; close files in `__getitem__`; `ulimit -n 65536`; or
               `torch.multiprocessing.set_sharing_strategy("file_system")`, which needs none open.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    if "ancdata" in match.group():
        return ["A worker's tensor could not be received: no file number was left for it."]
    return []


FAILURE = Failure(
    name="too_many_open_files",
    patterns=(r"received \d+ items of ancdata", r"\[Errno 24\] Too many open files[^\n]*"),
    explain=explain,
)
