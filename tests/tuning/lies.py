"""Techniques that are faster and learn something else, or only say that they do something."""

from typing import Any

from hotlap.techniques import Numerics
from tests.lab.planted import _technique


def _freeze_the_second_layer(target: Any, options: Any) -> Any:
    from torch import nn

    layers = [module for module in target.module.modules() if isinstance(module, nn.Linear)]
    for parameter in layers[1].parameters():
        parameter.requires_grad_(False)
    return target


def _scale_and_skip(target: Any, options: Any) -> Any:
    """Twice the rate in every second step, in place of the rate in each."""
    step, calls = target.optimizer.step, [0]

    def every_second(closure: Any = None) -> Any:
        calls[0] += 1
        if calls[0] % 2:
            return None
        for group in target_optimizer.param_groups:
            group["lr"] *= 2
        try:
            return step(closure)
        finally:
            for group in target_optimizer.param_groups:
                group["lr"] /= 2

    target_optimizer = target.optimizer
    target_optimizer.step = every_second
    return target


def _triple_now_and_then(target: Any, options: Any) -> Any:
    steps = [0]

    def count(module: Any, inputs: Any) -> None:
        steps[0] += module.training

    target.module.register_forward_pre_hook(count)
    for parameter in target.module.parameters():
        parameter.register_hook(lambda gradient: gradient * 3 if steps[0] % 3 == 0 else gradient)
    return target


def _nothing(target: Any, options: Any) -> Any:
    return target


FREEZE = _technique("freeze", "model", _freeze_the_second_layer)
FREEZE_EXACTLY = _technique("freeze_exactly", "model", _freeze_the_second_layer, Numerics.EXACT)
SKIP = _technique("skip", "optimizer", _scale_and_skip)
TRIPLE = _technique("triple", "model", _triple_now_and_then)
IDLE = _technique("idle", "optimizer", _nothing, Numerics.EXACT)
