"""Matrix products of linear layers in 8 bits, by Transformer Engine.

What it does   lets Transformer Engine compute every linear layer whose sides are multiples of 16:
               inputs and weights as e4m3, gradients as e5m2, each scaled by its own largest value.
               The plain layers keep their parameters, so names, formats, optimizer and checkpoints
               stay as they are. Layers that share their weight, such as the head of a language
               model with its embedding, stay as they are too.
When it helps  large products on a GPU that has the format: wide layers, many tokens a step.
When it hurts  narrow layers: scaling and casting cost more than the product saves. Belief to
               correct: it is not twice as fast as bfloat16; attention, norms, the optimizer and the
               casts stay as they are.
Numerics       precision: e4m3 has 3 bits of mantissa.
Measured       not yet measured on a GPU
Source         Micikevicius et al. 2022, arXiv 2209.05433; Transformer Engine, Float8CurrentScaling.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.record import ModelTarget, Numerics, Proof, Refusal, Technique

INSTALL = "pip install --no-build-isolation 'transformer_engine[pytorch]'"
_GPU = "an NVIDIA GPU of compute capability 8.9 or newer"
CAPABILITY = (8, 9)
"""The oldest GPUs that multiply in 8 bits: Ada; Hopper is (9, 0)."""
SIDE = 16
"""Both sides of a weight must be a multiple of this."""
ROWS = 8
"""So must the rows of an input: all its dimensions but the last, multiplied."""


def why_not(task: TaskFacts) -> str | None:
    if task.device.partition(":")[0] != "cuda":
        return (
            f"fp8 cannot run on '{task.device}', where the model trains. Expected: {_GPU}. Use a "
            "plan without fp8 on other devices."
        )
    if "Linear" not in task.layers:
        return (
            "the model has no `torch.nn.Linear`, so fp8 would change nothing. Use a plan without "
            "fp8."
        )
    return _explain_absence()


def _explain_absence() -> str | None:
    if find_spec("transformer_engine") is None:
        return (
            f"Transformer Engine is not installed. Install it with `{INSTALL}`, or use a plan "
            "without fp8."
        )
    return None


def _cannot_multiply(device: Any) -> str | None:
    """Return why that device does not multiply in 8 bits, None if it does."""
    import torch

    if device.type != "cuda":
        return (
            f"fp8 cannot run on '{device}', where the model is. Expected: {_GPU}; or use a plan "
            "without fp8."
        )
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        return (
            f"{name} has compute capability {found[0]}.{found[1]}, and fp8 needs 8.9 or newer. Use "
            "a newer GPU, or a plan without fp8."
        )
    return _explain_absence()


def _engine_linear(linear: Any) -> tuple[Callable[[Any], Any], Callable[[], bool]]:
    """Return Transformer Engine's forward over that layer's own parameters, and its evidence.

    All that needs the package and a GPU is in here.
    """
    import transformer_engine.pytorch as te  # pyright: ignore[reportMissingImports]
    from transformer_engine.common.recipe import (  # pyright: ignore[reportMissingImports]
        Float8CurrentScaling,
    )

    # Current and not delayed scaling: it has no history that a checkpoint would have to keep.
    scaling = Float8CurrentScaling()
    twin = te.Linear(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        params_dtype=linear.weight.dtype,
        device=linear.weight.device,
    )
    twin.weight = linear.weight
    if linear.bias is not None:
        twin.bias = linear.bias

    def forward(inputs: Any) -> Any:
        # Around each layer, so that layers that are computed again in the backward have it too.
        with te.fp8_autocast(enabled=True, fp8_recipe=scaling):
            return twin(inputs)

    return forward, lambda: bool(twin.fp8)


def apply(target: ModelTarget) -> ModelTarget:
    import torch

    module = target.module
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    reason = _cannot_multiply(device)
    if reason is not None:
        raise Refusal(reason)
    chosen = _layers(module)
    if not chosen:
        raise Refusal(
            "no `torch.nn.Linear` of the model can run in fp8. Expected: at least one with "
            f"in_features and out_features divisible by {SIDE}, and a weight that no other module "
            "shares; or use a plan without fp8."
        )
    try:
        twins = [(linear, *_engine_linear(linear)) for linear in chosen]
    except (ImportError, OSError) as error:
        raise Refusal(
            f"Transformer Engine cannot be imported: {error}. Install it for this torch with "
            f"`{INSTALL}`, or use a plan without fp8."
        ) from error
    calls = {"fp8": 0, "plain": 0}
    for linear, forward, _ in twins:
        linear.forward = _where_it_fits(linear, forward, calls)
    target.ended.append(lambda: [delattr(linear, "forward") for linear, *_ in twins])
    evidence = [is_in_8_bits for *_, is_in_8_bits in twins]
    target.notes["fp8"] = lambda: (calls, sum(is_so() for is_so in evidence), len(evidence))
    return target


def _layers(module: Any) -> list[Any]:
    import torch

    uses: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return [
        m
        for m in module.modules()
        if type(m) is torch.nn.Linear
        and uses[id(m.weight)] == 1
        and m.in_features % SIDE == 0
        and m.out_features % SIDE == 0
        and "forward" not in vars(m)
    ]


def _where_it_fits(
    linear: Any, forward: Callable[[Any], Any], calls: dict[str, int]
) -> Callable[[Any], Any]:
    plain = linear.forward

    # Named as torch.nn.Linear names it, for those who give it by name.
    def choose_forward(input: Any) -> Any:
        fits = (input.numel() // linear.in_features) % ROWS == 0
        calls["fp8" if fits else "plain"] += 1
        return forward(input) if fits else plain(input)

    return choose_forward


def proof(target: ModelTarget) -> Proof:
    if "fp8" not in target.notes:
        return Proof("no_effect", "no model was found")
    calls, in_8_bits, layers = target.notes["fp8"]()
    left = f"; {calls['plain']} calls ran without fp8: their row count is not divisible by {ROWS}"
    if not in_8_bits:
        return Proof("no_effect", f"none of {layers} layers computed in 8 bits{left}")
    words = f"{in_8_bits} of {layers} layers computed in 8 bits, {calls['fp8']} calls"
    return Proof("applied", words + left * bool(calls["plain"]))


TECHNIQUE = Technique(
    name="fp8",
    seam="model",
    numerics=lambda: Numerics.PRECISION,
    why_not=why_not,
    apply=apply,
    proof=proof,
    format_bits=8,
)
