"""A technique that acts late, and does not learn the same then: it lengthens gradients."""

from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from hotlap.techniques import Numerics, ProcessTarget, Proof, Technique
from hotlap.techniques.record import Live

_LATE = 30
_hooks: list[Any] = []


def _lengthen(optimizer: Any, args: Any, options: Any) -> None:
    del args, options
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state[parameter].get("step", 0) > _LATE:
                parameter.grad.mul_(1.01)


def _on(target: Any, options: Any) -> None:
    del target, options
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_lengthen))


def _off(target: Any, options: Any) -> None:
    del target, options
    while _hooks:
        _hooks.pop().remove()


def _switch() -> Any:
    _on(None, None)
    return lambda: _off(None, None)


def _apply(target: ProcessTarget) -> ProcessTarget:
    target.switch = _switch
    return target


LENGTHENED = Technique(
    name="lengthened",
    seam="process",
    numerics=lambda: Numerics.ROUNDING,
    apply=_apply,
    proof=lambda: Proof("applied", "so it says"),
    live=Live(_on, _off),
    acts_late=True,
)
