"""The numbers that the first layer of each trained model gets, and the gradients they cause."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from hotlap.attach.listener import mute_listener
from hotlap.distributed.shares import is_share
from hotlap.trace import frames
from hotlap.trace.learning import InputFacts
from hotlap.trace.regions import is_compiled
from hotlap.trace.safe_calls import SafeCalls

_STEPS = 12
"""Steps whose gradients are measured."""
INPUTS = "inputs"
"""The name of this watcher."""


class Inputs:
    """Looks at the first batch of each trained model, where its first layer gets it.

    Args:
        safely: calls what looks at a batch: that is within a forward of the script's.
    """

    def __init__(self, safely: SafeCalls) -> None:
        self._safely = safely
        self._handles: list[Any] = []
        """Hooks that were not called so far."""
        self._found: list[InputFacts] = []
        self._norms: list[float] = []
        self.is_open = True
        """True while there is something to look at in a step."""

    def follow(self, root: Any) -> None:
        """Look at what the first layer of a model gets in its next forward."""
        modules = list(root.modules())
        # A hook would be compiled with a part of the model, and a scripted one takes none. That
        # part may be the one with the first layer.
        if any(map(is_compiled, modules)):
            return
        handles: list[Any] = []
        for module in filter(_multiplies, modules):
            handles.append(module.register_forward_pre_hook(self._looking(handles, modules)))
        self._handles += handles

    def step_begins(self, optimizer: Any) -> None:
        """An optimizer is about to use its gradients."""
        # What is called in a compiled function alone is called without its hooks.
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self._found:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse]
        if not gradients:
            return
        if any(each.device.type != "cpu" or is_share(each) for each in gradients):
            # On another device the number would have to be waited for; of shares the norm would be
            # a collective, which the other ranks do not call.
            self.is_open = False
            return
        with torch.no_grad():
            norms = torch.stack([gradient.float().norm() for gradient in gradients])
            self._norms.append(float(norms.norm()))
        self.is_open = len(self._norms) < _STEPS

    def facts(self) -> tuple[InputFacts, ...]:
        """Return what was seen."""
        if not self._norms:
            return tuple(self._found)
        later = median(self._norms[1:]) if len(self._norms) > 1 else None
        return tuple(
            replace(each, gradient_norm=self._norms[0], later_norm=later) for each in self._found
        )

    def _looking(self, handles: list[Any], modules: list[Any]) -> Callable[..., None]:
        def look(module: Any, inputs: tuple[Any, ...]) -> None:
            if torch.compiler.is_compiling():
                return
            # The first layer that is called is the first one; of the others nothing is asked.
            for handle in handles:
                handle.remove()
            self._safely.call(INPUTS, self._look, module, inputs, modules)

        return look

    def _look(self, module: Any, inputs: tuple[Any, ...], modules: list[Any]) -> None:
        if not inputs or not isinstance(inputs[0], torch.Tensor):
            return
        given = inputs[0]
        # Sparse and nested tensors have no such numbers.
        is_dense = given.layout is torch.strided and not given.is_nested
        if is_dense and given.is_floating_point() and given.numel() > 1:
            with mute_listener(), torch.no_grad():
                given = given.float()
                mean, std, most = given.mean(), given.std(), given.abs().max()
            where = frames.location_of(frames.caller())
            layer = type(module).__name__
            numbers = float(mean), float(std), float(most)
            is_learned = _is_trained(module) and not _is_normalized(module, modules)
            self._found.append(InputFacts(where, layer, *numbers, is_learned=is_learned))


def _is_trained(layer: Any) -> bool:
    return any(each.requires_grad for each in layer.parameters(recurse=False) if each.ndim >= 2)


def _is_normalized(layer: Any, modules: list[Any]) -> bool:
    """Return whether a norm takes the scale of what a layer gives away, as far as order tells.

    Layers without weights in between, such as a ReLU, keep the scale.
    """
    leaves = [each for each in modules if next(each.children(), None) is None]
    for each in leaves[leaves.index(layer) + 1 :]:
        if isinstance(each, torch.nn.modules.batchnorm._NormBase):
            return True
        if next(each.parameters(), None) is not None:
            return False
    return False


def _multiplies(module: Any) -> bool:
    """Return whether a module is a layer that multiplies its input by weights."""
    if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
        return False
    own = [each for each in module.parameters(recurse=False) if each.ndim >= 2]
    return bool(own) and next(module.children(), None) is None
