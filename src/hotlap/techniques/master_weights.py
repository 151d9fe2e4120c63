"""Weights, activations and gradients in bfloat16; the optimizer works on float32 masters.

What it does   keeps a float32 master of every parameter for the optimizer, and a bfloat16 copy of
               it in the model, written again after each update: nothing is cast in the forward.
When it helps  models of linear layers and transformers, where autocast would cast every weight in
               every step. Weights that are shared stay shared.
When it hurts  models with batch norm (refused), and very small ones: two more passes over the
               weights a step.
Numerics       precision: forward and backward have bfloat16's 8 bits of mantissa; gradients of
               several micro-batches are summed in float32, and so are those of embeddings.
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md (by hand, MLP)
Source         Micikevicius et al. 2018, arXiv 1710.03740, section 3.1.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.narrow_buffers import Buffers
from hotlap.techniques.record import Memory, Numerics, Proof, Refusal, StepTarget, Technique
from hotlap.techniques.wide_embeddings import sum_embeddings_in_float32


def why_not(task: TaskFacts) -> str | None:
    norms = [name for name in task.layers if "BatchNorm" in name]
    if norms:
        return _on_batch_norm(norms[0])
    return None


def _on_batch_norm(name: str) -> str:
    return (
        f"the model has a {name}, and bfloat16 is too narrow for its running statistics. In the "
        "plan, replace [techniques.master_weights] by [techniques.autocast], which keeps these "
        "statistics in float32."
    )


def apply(target: StepTarget) -> StepTarget:
    import torch

    module, optimizer = target.module, target.optimizer
    _check(module)
    own = {id(parameter) for parameter in module.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strange = [tuple(parameter.shape) for parameter in held if id(parameter) not in own]
    if strange:
        raise Refusal(
            f"the optimizer has a parameter of shape {strange[0]} that is not in the model. Pass "
            "only the model's parameters to the optimizer, or use a plan without master_weights."
        )
    masters = {id(parameter): _master(parameter) for parameter in held}
    # What is not trained is given back as it was, not as bfloat16 holds it.
    wide = {name: masters.get(id(p), p.data) for name, p in module.named_parameters()}
    target.ended.append(partial(_give_back, dict(module.named_parameters()), wide))
    for parameter in module.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    for group in optimizer.param_groups:
        group["params"] = [masters[id(parameter)] for parameter in group["params"]]
    target.weights.update(wide)
    target.notes["masters"] = len(masters)
    target.ended.extend(_cast_at_the_border(module, target.notes))
    buffers = Buffers(module)
    if buffers.wide:
        target.ended.extend(buffers.join(target))
    if target.device == "cpu":
        target.ended.extend(sum_embeddings_in_float32(module))
    _Copies(held, [masters[id(parameter)] for parameter in held]).join(target)
    return target


def _check(module: Any) -> None:
    """Refuse layers and parameters that cannot be trained in bfloat16."""
    import torch

    for each in module.modules():
        if isinstance(each, torch.nn.modules.batchnorm._BatchNorm):
            raise Refusal(_on_batch_norm(type(each).__name__))
    for each in module.modules():
        # Plain embeddings and bags of them have both.
        if getattr(each, "max_norm", None) is not None:
            raise Refusal(
                f"{type(each).__name__} has max_norm={each.max_norm}, so its forward changes its "
                "weights, which the float32 master weights would not follow. In the plan, replace "
                "[techniques.master_weights] by [techniques.autocast], which has no master weights."
            )
        if getattr(each, "sparse", False):
            raise Refusal(
                f"{type(each).__name__} has sparse=True, and sparse gradients cannot be added to "
                "float32 master weights. Set sparse=False in the model, or replace "
                "[techniques.master_weights] in the plan by [techniques.autocast]."
            )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise Refusal(
                f"parameter {name} is {parameter.dtype}. Expected: torch.float32. Convert the "
                "model with `.float()`, or use a plan without master_weights."
            )


def _master(parameter: Any) -> Any:
    return parameter.detach().clone().requires_grad_(parameter.requires_grad)


def _give_back(parameters: dict[str, Any], wide: dict[str, Any]) -> None:
    """Put float32 weights into the model."""
    for name, parameter in parameters.items():
        parameter.data = wide[name].detach().clone()
        # It would be in the other format, and of a step that is over.
        parameter.grad = None


def _cast_at_the_border(module: Any, notes: dict[str, Any]) -> list[Callable[[], None]]:
    """Cast what goes in and what comes out; return what ends that."""
    import torch

    returned: dict[str, Any] = {"kind": None}
    notes["returned"] = returned

    def narrow(module: Any, args: Any, kwargs: Any) -> Any:
        del module
        if len(args) == 1 and not kwargs and args[0].__class__ is torch.Tensor:
            # What most models take; to look through structures takes longer than the cast.
            (value,) = args
            return (value.to(torch.bfloat16) if value.dtype is torch.float32 else value,), kwargs
        return _cast(args, torch.float32, torch.bfloat16), _cast(
            kwargs, torch.float32, torch.bfloat16
        )

    def widen(module: Any, args: Any, output: Any) -> Any:
        del module, args
        # Written to in every step: code that was compiled would ask again whether it is there.
        returned["kind"] = output.dtype if isinstance(output, torch.Tensor) else type(output)
        if output.__class__ is torch.Tensor:
            return output.to(torch.float32) if output.dtype is torch.bfloat16 else output
        return _cast(output, torch.bfloat16, torch.float32)

    return [
        module.register_forward_pre_hook(narrow, with_kwargs=True).remove,
        module.register_forward_hook(widen).remove,
    ]


def _cast(value: Any, old: Any, new: Any) -> Any:
    from hotlap.nested import map_tensors

    return map_tensors(value, lambda tensor: tensor.to(new) if tensor.dtype == old else tensor)


def _is_there(gradient: Any) -> bool:
    return gradient is not None


class _Copies:
    """Carries gradients from the copies to the masters, and weights back."""

    def __init__(self, copies: list[Any], masters: list[Any]) -> None:
        import torch

        self.copies, self.masters = copies, masters
        self.is_fresh = True
        self._copy = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]
        self._add = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]

    def join(self, target: StepTarget) -> None:
        target.zero_grad = self.zero
        target.after_backward.append(self.collect)
        target.after_update.append(self.publish)

    def zero(self) -> None:
        self.is_fresh = True
        for copy in self.copies:
            copy.grad = None

    def collect(self) -> None:
        """Add the copies' gradients to the masters', in float32."""
        narrow = [copy.grad for copy in self.copies]
        wide = [master.grad for master in self.masters]
        # From the second step on every tensor has both, as a rule.
        if not all(map(_is_there, narrow)) or not all(map(_is_there, wide)):
            wide, narrow = self._pairs()
        if self.is_fresh:
            self._copy(wide, narrow)
        else:
            self._add(wide, [gradient.float() for gradient in narrow])
        self.is_fresh = False
        for copy in self.copies:
            copy.grad = None

    def _pairs(self) -> tuple[list[Any], list[Any]]:
        """Return the masters' gradients and the copies', where a copy has one."""
        import torch

        wide, narrow = [], []
        for master, copy in zip(self.masters, self.copies, strict=True):
            if copy.grad is not None:
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                wide.append(master.grad)
                narrow.append(copy.grad)
            elif self.is_fresh:
                # Kept from the last step otherwise: masters' gradients are overwritten, not zeroed.
                master.grad = None
        return wide, narrow

    def publish(self) -> None:
        """Copy the masters into the model."""
        import torch

        with torch.no_grad():
            self._copy(self.copies, self.masters)


def proof(target: StepTarget) -> Proof:
    kind = target.notes["returned"]["kind"]
    if kind is None:
        return Proof("no_effect", "no forward ran")
    dtype = kind.__name__ if isinstance(kind, type) else kind
    masters = target.notes["masters"]
    return Proof("applied", f"{masters} float32 master weights; the model returned {dtype}")


TECHNIQUE = Technique(
    name="master_weights",
    seam="step",
    numerics=lambda: Numerics.PRECISION,
    why_not=why_not,
    apply=apply,
    proof=proof,
    memory=Memory(axis="precision", choices={"bf16 masters": {}}),
)
