"""Matrix products and convolutions in bfloat16 or float16, the rest in float32.

What it does   runs forward and loss under torch.autocast; weights and optimizer stay in float32.
When it helps  large matrix products or convolutions on hardware that computes in bfloat16.
When it hurts  small linear layers: every weight is cast again in every step, and that can cost more
               than the product saves. Belief to correct: it may raise memory, because the cast
               copies are kept for the backward.
Numerics       precision: bfloat16 has 8 bits of mantissa, float16 has 11 and a narrow range: there
               a scaler keeps small gradients, and leaves out the updates in which large ones
               overflow. It lives as long as the run, and is saved with it.
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md (by hand, CNN)
Source         torch.autocast documentation; pytorch/pytorch issue 118499 (91 times slower).
"""

from dataclasses import dataclass
from typing import Any, Literal

from hotlap.task import TaskFacts
from hotlap.techniques.record import Memory, Numerics, Proof, Refusal, StepTarget, Technique

_NO_LAYER = (
    "the model has no linear or convolution layer for autocast to speed up. Expected: at least one "
    "`Linear`, `Conv1d`, `Conv2d` or `Conv3d`; or use a plan without autocast."
)


@dataclass(frozen=True)
class Options:
    dtype: Literal["bf16", "fp16"] = "bf16"
    """Format of the products."""


def why_not(task: TaskFacts) -> str | None:
    if not any(name.endswith(("Linear", "Conv1d", "Conv2d", "Conv3d")) for name in task.layers):
        return _NO_LAYER
    return None


def apply(target: StepTarget, options: Options) -> StepTarget:
    import torch

    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    layers = [module for module in target.module.modules() if isinstance(module, kinds)]
    if not layers:
        raise Refusal(_NO_LAYER)
    device = target.device
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float16
    target.forward.append(lambda: torch.autocast(device, dtype=dtype))
    if options.dtype == "fp16":
        target.scaler = torch.amp.GradScaler(device)
    notes = target.notes
    seen = notes["autocast"] = {"dtype": None}

    def look(module: Any, args: Any, output: Any) -> None:
        del module, args
        # The first forward of a run may be an evaluation, which is in the model's own format.
        if not torch.is_grad_enabled():
            return
        # Nothing that compiled code would have to ask for again: a hook that is gone, or a key that
        # is new, would make it compile once more.
        seen["dtype"] = output.dtype
        if not torch.compiler.is_compiling() and "compile" not in notes:
            remove()

    def remove() -> None:
        for handle in handles:
            handle.remove()

    # Not every layer is called: attention takes the weights of its last one alone.
    handles = [layer.register_forward_hook(look) for layer in layers]
    target.ended.append(remove)
    return target


def proof(target: StepTarget, options: Options) -> Proof:
    dtype = target.notes["autocast"]["dtype"]
    if dtype is None:
        return Proof("no_effect", "no linear or convolution layer ran")
    dtype = str(dtype)
    asked = "torch.bfloat16" if options.dtype == "bf16" else "torch.float16"
    if dtype != asked:
        return Proof("no_effect", f"the first layer's output is {dtype}, not {asked}")
    return Proof("applied", f"the first layer's output is {dtype.removeprefix('torch.')}")


TECHNIQUE = Technique(
    name="autocast",
    seam="step",
    Options=Options,
    numerics=lambda: Numerics.PRECISION,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=lambda: ({"dtype": "bf16"}, {"dtype": "fp16"}),
    memory=Memory(axis="precision", choices={"bf16 autocast": {"dtype": "bf16"}}),
    on_ranks=True,
)
