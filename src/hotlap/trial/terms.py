"""How many terms are summed in the gradient of each parameter: what rounding may grow with."""

from collections.abc import Iterable
from typing import Any

import torch


class Terms:
    """Counts, while it is attached, the terms of each parameter's gradient.

    A parameter's gradient sums over all outputs of its module but its own dimension: samples, and
    places in an image or a text.
    """

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self._longest: dict[int, float] = {}
        self._handles: list[Any] = []
        self._watched: set[int] = set()

    def attach(self, modules: Iterable[Any]) -> None:
        """Count for these modules and all within them; those that are known are left alone."""
        for root in modules:
            for module in root.modules():
                if id(module) not in self._watched and list(module.parameters(recurse=False)):
                    self._watched.add(id(module))
                    self._handles.append(module.register_forward_hook(self._count))

    def _count(self, module: Any, _inputs: Any, output: Any) -> None:
        if not isinstance(output, torch.Tensor):
            return
        if getattr(module, "running_mean", None) is not None and output.device.type == "cpu":
            self._longest[id(module)] = output.numel() / module.running_mean.numel()
        for parameter in module.parameters(recurse=False):
            own = parameter.shape[0] if parameter.ndim else 1
            terms = output.numel() / max(1, own)
            self._counts[id(parameter)] = max(terms, self._counts.get(id(parameter), 1.0))

    @property
    def longest(self) -> float:
        """The terms of the longest sum that a kernel makes one value after another, 1 if none.

        That is batch norm's in channels-last layout on a CPU; other devices sum in trees.
        """
        return max(self._longest.values(), default=1.0)

    def of(self, parameter: Any) -> dict[str, float]:
        """Return `terms` of a parameter's gradient, 1 if its module was not seen to run, and
        `features`: the length of its first dimension, along which errors are independent."""
        features = parameter.shape[0] if parameter.ndim else 1
        return {"terms": self._counts.get(id(parameter), 1.0), "features": features}

    def detach(self) -> None:
        """Count no longer."""
        while self._handles:
            self._handles.pop().remove()
        self._watched.clear()
