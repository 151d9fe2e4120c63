"""The kernel that computes `F.scaled_dot_product_attention` is chosen, and seen to run.

What it does   puts one of torch's own kernels first (`flash`, `efficient`, `cudnn`, `math`), or
               computes attention in another way wherever the model asks torch for it: `products`
               (matrix products and a softmax in the tensors' own format) or `xformers`. Nothing in
               the model is edited, and backward, recomputation and evaluation use the same kernel.
When it helps  where torch's first choice is not the fastest: `cudnn` on Hopper, if torch does not
               choose it by itself; `products` on a CPU in bfloat16 with short sequences, where
               flash is slower than in float32.
When it hurts  long sequences under `math` and `products`, which hold all scores, length x length a
               head. With `compile` the first step runs uncompiled, in the memory that such a step
               needs. Belief to correct: asking for flash does not mean that it runs; a mask,
               dropout, float32 or an unusual head size make torch take another kernel, without a
               word.
Numerics       rounding: sums in another order. `math` computes in float32 what comes in bfloat16,
               `products` rounds scores and weights to bfloat16 as well.
Measured       benchmarks/results/2026-11-21_engine_amd-epyc-2-cores.md (`products` on a CPU); not
               yet measured on a GPU
Source         torch.nn.attention.sdpa_kernel; Dao et al. 2022, arXiv 2205.14135; Rabe and Staats
               2021, arXiv 2112.05682 (xFormers).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from hotlap.task import TaskFacts
from hotlap.techniques.record import ModelTarget, Numerics, Proof, Refusal, Technique

ON_A_CPU = ("flash", "math", "products")
_PROJECTIONS = ("Linear", "Conv1d", "Conv2d", "MultiheadAttention", "Conv1D")
_NAMED = ("Attention", "Attn", "Transformer")


@dataclass(frozen=True)
class Options:
    kernel: Literal["flash", "efficient", "cudnn", "math", "products", "xformers"] = "flash"
    """The first four are torch's; where one of them cannot serve, torch takes another."""


def why_not(task: TaskFacts, options: Options) -> str | None:
    if not any(name.endswith(_PROJECTIONS) for name in task.layers):
        names = ", ".join(_PROJECTIONS)
        return (
            "the model has no layer that could compute queries, keys and values, so it has no "
            f"attention to speed up. Use a plan without attention, or a model with one of {names}."
        )
    return _why_not_on(task.device, options)


def _why_not_on(device: str, options: Options) -> str | None:
    if device.partition(":")[0] == "cpu" and options.kernel not in ON_A_CPU:
        allowed = ", ".join(ON_A_CPU)
        return (
            f"kernel='{options.kernel}' needs a GPU, but the model is on '{device}'. Set `kernel` "
            f"in the plan's [techniques.attention] to one of: {allowed}."
        )
    if options.kernel == "xformers" and find_spec("xformers") is None:
        return (
            "kernel='xformers' needs the package xformers, which is not installed. Install it with "
            "`pip install xformers`, or set another `kernel` in the plan's [techniques.attention]."
        )
    return None


def apply(target: ModelTarget, options: Options) -> ModelTarget:
    import weakref

    from hotlap.techniques.attending import (
        NOT_TORCHS,
        FirstForward,
        intercept_attention,
        is_compiled,
        prefer_kernel,
        replacement,
        separate_compiled_code,
    )

    module, kernel = target.module, options.kernel
    device = next((p.device.type for p in module.parameters()), "cpu")
    reason = _why_not_on(device, options)
    if reason is not None:
        raise Refusal(reason)
    if is_compiled(module):
        raise Refusal(
            "the model is already compiled by `torch.compile`, so attention cannot record its "
            "first forward pass. Remove `torch.compile` from the script or recipe, or use a plan "
            "without attention."
        )
    reference, ended = weakref.ref(module), target.ended

    def prefer() -> None:
        ended.append(weakref.finalize(reference(), prefer_kernel(kernel)))

    seen = FirstForward(kernel, prefer)
    attend = replacement(kernel, seen) if kernel in NOT_TORCHS else seen.compute_and_note
    # Whichever comes first: the end of the run, or of the model in a run that was broken off.
    restore = weakref.finalize(module, intercept_attention(device, attend))
    target.ended.append(restore)
    target.ended.append(weakref.finalize(module, separate_compiled_code(kernel)))
    if kernel in NOT_TORCHS:
        seen.watch(module, ended=lambda: None)
    else:
        seen.watch(module, ended=restore)
    target.notes["attention"] = seen
    return target


def proof(target: ModelTarget) -> Proof:
    seen = target.notes.get("attention")
    if seen is None or not seen.forwards:
        return Proof("no_effect", "no forward pass ran")
    return Proof(*seen.judge())


def candidates(task: TaskFacts) -> tuple[Mapping[str, Any], ...]:
    # Worth a trial only where a class says in its name what it is; asked for, it acts on any.
    if not any(word in name for name in task.layers for word in _NAMED):
        return ()
    if task.device.partition(":")[0] == "cpu":
        return ({"kernel": "products"},)
    return ({"kernel": "cudnn"}, {"kernel": "flash"}, {"kernel": "xformers"})


TECHNIQUE = Technique(
    name="attention",
    seam="model",
    Options=Options,
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    without_candidates="no layer's class is named after attention; in a plan it can be tried",
    on_ranks=True,
)
