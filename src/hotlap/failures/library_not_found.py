"""A shared library that torch needs was not found, or is another version's.

What happened  torch's packages bring cuDNN, cuBLAS and the other CUDA libraries with them, in
               `site-packages/nvidia`. One is missing there (an installation that broke off, or
               without its dependencies), or another program's copy is found before it.
Look at        `pip list | grep nvidia` against `pip show torch`; LD_LIBRARY_PATH; whether conda and
               pip have both installed torch or CUDA here. `ldd` on the library that is named shows
               which of its own dependencies is missing.
What to do     unset LD_LIBRARY_PATH (`env -u LD_LIBRARY_PATH python train.py`); install torch in a
               new environment, with its dependencies (`pip install torch`); for another package
               that needs CUDA libraries (onnxruntime, TensorFlow), install the build for the same
               CUDA version as torch's.
"""

import re

from hotlap.failures.record import Failure

_NAME = (
    r"lib(?:cudnn|cublas|cuda|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink|nvToolsExt"
    r"|nvshmem|cupti|cufile|torch|c10|caffe2)\w*\.so[\d.]*"
)


def explain(match: "re.Match[str]") -> list[str]:
    found = re.search(_NAME, match.group())
    if found is None:
        return []
    if ", version lib" in match.group():
        return [f"A function is missing in {found[0]}: a library of another version was found."]
    if "undefined symbol" in match.group():
        return [f"{found[0]} needs a function that is missing: its own libraries are others here."]
    if found[0].startswith("libcuda.so"):
        return ["libcuda.so is the driver's own: there is none on this machine or container."]
    return [f"{found[0]} was not found, or one of the libraries that it needs."]


FAILURE = Failure(
    name="library_not_found",
    patterns=(
        rf"{_NAME}: cannot open shared object file[^\n]*",
        rf"[Cc]ould not load library {_NAME}[^\n]*",
        rf"Unable to load any of \{{{_NAME}[^\n]*",
        rf"undefined symbol: \w+, version {_NAME}",
        rf"{_NAME}: undefined symbol: [^\n]*",
    ),
    explain=explain,
)
