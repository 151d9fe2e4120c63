"""`outside_of`: parameters of the model that no optimizer has, and parameters of no model."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from hotlap.task.facts import OptimizerFacts

_ITEMS = 1000
"""Of a list or dict that are looked at: it may be one of anything."""
_NUMBERS = 64
"""Of a parameter that are kept to see whether it changes."""


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
        _Left(p, type(module).__name__)
        for key, (p, module) in trained.items()
        if p.requires_grad and p.grad is not None and key not in held
    ]
    return Outside(len(lost), left)


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


class _Left:
    """A parameter with a gradient that is in no optimizer, as it is now.

    Args:
        parameter: it.
        holder: class of the module that has it.
    """

    def __init__(self, parameter: Any, holder: str) -> None:
        self.holder = holder
        self._parameter, self._version = weakref.ref(parameter), parameter._version
        self._numbers = _first_numbers(parameter)

    def has_changed(self) -> bool:
        """Return whether the script has updated it by itself."""
        parameter = self._parameter()
        if parameter is None or parameter._version != self._version:
            return True
        # What is written through `.data` has a version of its own.
        now = _first_numbers(parameter)
        return now is not None and not torch.equal(now, self._numbers)


def _first_numbers(parameter: Any) -> Any:
    """Return some of a parameter's numbers, None where they would have to be waited for."""
    if not parameter.is_cpu or parameter.layout != torch.strided:
        return None
    return parameter.detach().reshape(-1)[:_NUMBERS].clone()


@dataclass(frozen=True)
class Outside:
    """Parameters that an optimizer and the modules that are trained do not share."""

    lost: int
    """Tensors of the optimizer's that are in none of the modules, and have no gradient."""
    _left: Sequence[_Left] = ()

    @property
    def left(self) -> int:
        """Tensors of the modules with a gradient that are in no optimizer."""
        return len(self._left)

    @property
    def left_in(self) -> str:
        """Class of the module of the first of these, empty if there is none."""
        return self._left[0].holder if self._left else ""

    def look_again(self) -> "Outside":
        """Return what is left some steps later, without what the script updates by itself."""
        return Outside(self.lost, [each for each in self._left if not each.has_changed()])

    def added_to(self, facts: OptimizerFacts) -> OptimizerFacts:
        """Return facts of the optimizer with these."""
        return replace(facts, lost=self.lost, left=self.left, left_in=self.left_in)
