"""Products of float32 matrices in TF32, or in bfloat16 where the hardware offers that.

What it does   sets torch.set_float32_matmul_precision: `high` lets NVIDIA GPUs from compute
               capability 8.0 on multiply float32 matrices in TF32, and sum in float32; `medium`
               also allows bfloat16, which torch uses on CPUs with AMX only. Weights, activations
               and everything that is no product stay float32.
When it helps  models of large linear layers that stay in float32 on a GPU with tensor cores.
When it hurts  nothing in speed; see Numerics. Beliefs to correct: TF32 is not off throughout:
               convolutions and recurrent layers of cuDNN have it on by default, and this switch
               does not turn it off there; `medium` is no faster than `high` on NVIDIA GPUs, where
               both mean TF32. On a CPU `high` needs AMX-FP16, and `medium` AMX-BF16: without them
               the products stay float32, whatever is set (looked at on torch 2.13, AVX512_BF16
               without AMX: an error of 6e-7 for `medium`, where bfloat16 would give 3e-3).
Numerics       precision: TF32 has 10 bits of mantissa, bfloat16 has 7, float32 has 23.
Measured       not yet measured on a GPU. On a CPU without AMX it is refused.
Source         PyTorch documentation, set_float32_matmul_precision and "numerical accuracy";
               NVIDIA A100 white paper, TF32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotlap.device import process_settings
from hotlap.task import TaskFacts
from hotlap.techniques.record import Numerics, ProcessTarget, Proof, Refusal, Technique

_FLOAT32_ERROR = 1e-5
"""A product of the probe's size in float32 is off by less; in TF32 by 3e-4 or more."""


@dataclass(frozen=True)
class Options:
    precision: Literal["high", "medium"] = "high"
    """`high`: TF32; `medium`: bfloat16 too, where products of float32 can be made of it."""


def why_not(task: TaskFacts, host: Any, options: Options) -> str | None:
    if task.device == "cpu":
        needed = "amx_fp16" if options.precision == "high" else "amx_bf16"
        if needed not in host.features:
            return (
                f"precision='{options.precision}' needs a CPU with the instructions {needed}, "
                "which this CPU lacks, so products would stay in float32. Use a plan without "
                "matmul_precision."
            )
    elif not any(float(gpu.compute_capability or 0) >= 8 for gpu in host.gpus):
        found = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in host.gpus)
        return (
            "TF32 needs an NVIDIA GPU of compute capability 8.0 or newer. GPUs on this host: "
            f"{found or 'none'}. Use a plan without matmul_precision."
        )
    return None


def apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    def switch() -> Callable[[], None]:
        before = process_settings.matmul_precision()
        process_settings.set_matmul_precision(options.precision)
        if _can_multiply(target):
            error = process_settings.product_error(target.device)
            if error < _FLOAT32_ERROR:
                process_settings.set_matmul_precision(before)
                raise Refusal(
                    f"precision='{options.precision}' {_as_before(target, error)}. Use a plan "
                    "without matmul_precision."
                )
        return lambda: process_settings.set_matmul_precision(before)

    target.switch = switch
    return target


def _can_multiply(target: ProcessTarget) -> bool:
    """False before a script has chosen its CUDA device: a product would choose one for it."""
    return target.device != "cuda" or process_settings.cuda_has_begun()


def _as_before(target: ProcessTarget, error: float) -> str:
    return (
        f"has no effect on device '{target.device}': the relative error of a product is "
        f"{error:.0e}, as in float32"
    )


def proof(target: ProcessTarget, options: Options) -> Proof:
    now = process_settings.matmul_precision()
    if now != options.precision:
        return Proof("no_effect", f"the precision is `{now}` at the end: the script sets it")
    if not _can_multiply(target):
        return Proof("no_effect", "the run used no CUDA device")
    error = process_settings.product_error(target.device)
    if error < _FLOAT32_ERROR:
        return Proof("no_effect", f"`{now}` {_as_before(target, error)}")
    return Proof(
        "applied",
        f"the relative error of a float32 product is {error:.0e}, and at most 1e-6 in full float32",
    )


def candidates(task: TaskFacts) -> tuple[Mapping[str, Any], ...]:
    return ({"precision": "medium" if task.device == "cpu" else "high"},)


TECHNIQUE = Technique(
    name="matmul_precision",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.PRECISION,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    on_ranks=True,
)
