"""`outside_of`: parameters of the model that no optimizer has, and parameters of no model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

_ITEMS = 1000
"""Of a list or dict that are looked at: it may be one of anything."""


def outside_of(optimizer: Any, modules: Iterable[Any], optimizers: Iterable[Any]) -> "Outside":
    """Return what an optimizer does not reach, after a backward.

    Args:
        optimizer: has just stepped.
        modules: those that were called in training.
        optimizers: all of them.
    """
    trained = {id(p): (p, module) for module in modules for p in _parameters(module)}
    held = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    own = [p for group in optimizer.param_groups for p in group["params"]]
    lost = [p for p in own if p.requires_grad and p.grad is None and id(p) not in trained]
    left = [
        type(module).__name__
        for key, (p, module) in trained.items()
        if p.requires_grad and p.grad is not None and key not in held
    ]
    return Outside(len(lost), len(left), left[0] if left else "")


def _parameters(module: Any) -> Iterator[Any]:
    """Give the parameters of a module, and of those that it holds in plain lists and dicts, which
    `parameters()` does not know of."""
    yield from module.parameters()
    for each in module.modules():
        held = [value for name, value in vars(each).items() if name != "_modules"]
        for value in held:
            items = value.values() if type(value) is dict else value
            if type(value) in (list, tuple, dict):
                for item in islice(items, _ITEMS):
                    if isinstance(item, torch.nn.Module):
                        yield from item.parameters()


@dataclass(frozen=True)
class Outside:
    """Parameters that an optimizer and the modules that are trained do not share; the fields are
    those of its `OptimizerFacts`."""

    lost: int
    """Tensors of the optimizer's that are in none of the modules, and have no gradient."""
    left: int
    """Tensors of the modules with a gradient that are in no optimizer."""
    left_in: str
    """Class of the module of the first of these, empty if there is none."""
