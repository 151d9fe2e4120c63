"""torch, the NVIDIA driver and the GPU do not fit each other.

What happened  a build of torch is for the CPU or for one version of CUDA, and holds kernels for
               some generations of GPUs. The driver must be at least as new as that version wants.
Look at        `python -c "import torch; print(torch.__version__, torch.version.cuda,
               torch.cuda.get_arch_list())"`; `nvidia-smi` shows the driver and the newest CUDA that
               it can serve. `hotlap env` names a CPU build beside a GPU.
What to do     a CPU build ("+cpu"): install the build for your CUDA, from the selector of PyTorch's
               site; a driver that is too old: update it, or install a build for an older CUDA; "no
               kernel image": a build that knows this GPU, newer for new GPUs, older for old ones.
               In a container the driver is the host's: start it with `--gpus all`.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    if "not compiled with CUDA" in text:
        return ["This torch is a build for the CPU."]
    if "Found no NVIDIA driver" in text:
        return ["There is no driver here: no GPU, or a container that was started without it."]
    found = re.search(r"found version (\d+)", text)
    if found is not None:
        number = int(found[1])
        return [f"The driver serves CUDA up to {number // 1000}.{number % 1000 // 10}."]
    if "no kernel image" in text or "is not compatible" in text:
        return ["This torch holds no kernels for this generation of GPUs."]
    return []


FAILURE = Failure(
    name="driver_mismatch",
    patterns=(
        r"Torch not compiled with CUDA enabled",
        r"Found no NVIDIA driver on your system",
        r"The NVIDIA driver on your system is too old[^\n]*",
        r"CUDA driver version is insufficient for CUDA runtime version",
        r"no kernel image is available for execution on the device",
        r"CUDA capability sm_\d+ is not compatible with the current PyTorch installation",
        r"forward compatibility was attempted on non supported HW",
        r"CUDA unknown error - this may be due to an incorrectly set up environment[^\n]*",
    ),
    explain=explain,
)
