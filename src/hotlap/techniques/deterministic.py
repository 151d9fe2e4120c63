"""Only algorithms that give the same bits each time they run.

What it does   sets torch.use_deterministic_algorithms, cuDNN's deterministic mode, and
               CUBLAS_WORKSPACE_CONFIG, without which cuBLAS may sum in changing orders. An operator
               that has no such algorithm raises an error, in the middle of the run if need be.
When it helps  finding out why two runs differ, and comparing others bit for bit. It is no speed-up,
               and is never tried by `tune`: a plan has to ask for it.
When it hurts  speed, on a GPU: scatter, index and some backward kernels take slower ways. Its price
               is the difference of two runs: `hotlap train` with and without it in the plan.
               Beliefs to correct: seeds alone do not make a GPU run repeat itself; and neither does
               this without seeds, with another number of threads or on another GPU.
Numerics       rounding: other kernels, another order of sums.
Measured       not yet measured on a GPU.
Source         PyTorch documentation, "Reproducibility"; cuBLAS documentation, "Results
               reproducibility".
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.device import process_settings
from hotlap.techniques.record import Numerics, ProcessTarget, Proof, Refusal, Technique

_VARIABLE, _WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
_ALLOWED = (_WORKSPACE, ":16:8")


@dataclass(frozen=True)
class Options:
    fill_memory: bool = False
    """Fill memory that nothing was written to yet, as torch does in this mode unless told
    otherwise: it finds programs that read such memory, and costs a pass over every tensor."""


def apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    if target.environment.get(_VARIABLE) not in _ALLOWED:
        target.environment[_VARIABLE] = _WORKSPACE
    target.switch = lambda: _set(options, target.device)
    return target


def _set(options: Options, device: str) -> Callable[[], None]:
    import torch

    memory: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        memory.fill_uninitialized_memory,
        torch.backends.cudnn.deterministic,
        os.environ.get(_VARIABLE),
    )
    if before[-1] not in _ALLOWED:
        # cuBLAS reads it when it is first used.
        os.environ[_VARIABLE] = _WORKSPACE
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = options.fill_memory
    torch.backends.cudnn.deterministic = True

    def undo() -> None:
        mode, warns, fills, cudnn, workspace = before
        torch.use_deterministic_algorithms(mode, warn_only=warns)
        memory.fill_uninitialized_memory = fills
        torch.backends.cudnn.deterministic = cudnn
        if workspace is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = workspace

    if device == "cuda" and process_settings.cuda_has_begun():
        refused = process_settings.refused_product(device)
        if refused is not None:
            undo()
            raise Refusal(
                f"this process used cuBLAS before the environment variable {_VARIABLE} was set, "
                f"which is too late. Set {_VARIABLE}={_WORKSPACE} in the environment before the "
                "process starts, and keep `deterministic` in the plan; or use a plan without it."
            )
    return undo


def proof() -> Proof:
    import torch

    values, where = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    try:
        # It has no deterministic form on any device, so torch must refuse it.
        values.put_(where, torch.ones(2))
    except RuntimeError:
        return Proof("applied", "torch raises in `put_`, which has no deterministic algorithm")
    return Proof("no_effect", "torch runs `put_`, which has no deterministic algorithm")


TECHNIQUE = Technique(
    name="deterministic",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.ROUNDING,
    why_not=lambda: None,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
    on_ranks=True,
)
