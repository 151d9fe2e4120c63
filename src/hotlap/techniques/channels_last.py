"""Channels-last memory format for convolution models.

What it does   stores 4-D weights channels last before the first forward; convolutions then give
               channels-last activations without copies between layouts.
When it helps  convolutions on GPUs with tensor cores, and on CPUs with a good oneDNN path.
When it hurts  models with operators that fall back to the default layout: copies come back, twice.
Numerics       rounding: other kernels, another order of sums. On a CPU batch norm's kernel for
               this layout is 250 times less exact than the default one (torch 2.13).
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md
Source         PyTorch tutorial on memory formats; torch.nn.Module.to documentation.
"""

from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.record import ModelTarget, Numerics, Proof, Refusal, Technique

_NO_CONVOLUTION = "the model has no 2-D convolution; expected: at least one `Conv2d`"


def why_not(task: TaskFacts) -> str | None:
    if not any(name.endswith("Conv2d") for name in task.layers):
        return _NO_CONVOLUTION
    return None


def apply(target: ModelTarget) -> ModelTarget:
    import torch

    convolutions = [m for m in target.module.modules() if isinstance(m, torch.nn.Conv2d)]
    if not convolutions:
        raise Refusal(_NO_CONVOLUTION)
    target.module.to(memory_format=torch.channels_last)
    # State that a checkpoint brought in keeps the old layout, and fused kernels walk memory, not
    # strides: parameter and state must lie alike.
    for optimizer in target.optimizers:
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, torch.Tensor) and parameter.dim() == 4:
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                        state[key] = value.contiguous(memory_format=torch.channels_last)
    notes = target.notes

    def look(module: Any, args: Any, output: Any) -> None:
        del module, args
        notes["output_is_channels_last"] = output.is_contiguous(memory_format=torch.channels_last)
        handle.remove()

    handle = convolutions[-1].register_forward_hook(look)
    return target


def proof(target: ModelTarget) -> Proof:
    seen = target.notes.get("output_is_channels_last")
    if seen is None:
        return Proof("no_effect", "the last convolution never ran")
    if not seen:
        return Proof("no_effect", "the last convolution's output is not in channels_last format")
    return Proof("applied", "the last convolution's output is in channels_last format")


TECHNIQUE = Technique(
    name="channels_last",
    seam="model",
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    memory_format="channels_last",
    is_opportunity=True,
)
