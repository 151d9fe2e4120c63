"""The process group was asked for with a backend that this machine does not have.

What happened  `init_process_group("nccl")` needs GPUs, and a torch that was built for them.
Look at        `hotlap env`: is there a GPU, and a torch for it? Is one hidden by an empty
               CUDA_VISIBLE_DEVICES?
What to do     without GPUs, `init_process_group("gloo")`; for both,
               `init_process_group("nccl" if torch.cuda.is_available() else "gloo")`. Then also
               leave out `torch.cuda.set_device` and `device_ids` of `DistributedDataParallel`.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    name = match["built"] or match["process"]
    if match["built"]:
        return [f"This torch was built without {name}; gloo works on CPUs."]
    return [f"{name} needs GPUs, and torch finds none; gloo works on CPUs."]


FAILURE = Failure(
    name="backend_missing",
    patterns=(
        r"Distributed package doesn't have (?P<built>\w+) built in|"
        r"ProcessGroup(?P<process>\w+) is only supported with GPUs, no GPUs found!",
    ),
    explain=explain,
)
