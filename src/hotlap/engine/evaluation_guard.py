"""Context managers: evaluation mode, and modes, buffers and RNG states put back afterwards."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hotlap import rng
from hotlap.engine.frozen_parameters import kept_frozen

_OF_TORCH = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has: what is in them is not kept by its forward."""


_disturbed: "weakref.WeakSet[Any]" = weakref.WeakSet()


def is_disturbed(model: Any) -> bool:
    """True if a look at the model has begun, and not everything is back where it was."""
    return model in _disturbed


def evaluation_guard(
    model: Any, *, takes_gradients: bool = False, makes_ordinary: bool = False
) -> "_EvaluationGuard":
    """Put the model into evaluation mode without gradients, and everything back afterwards.

    Args:
        model: whose modules may keep what they make, as tables of positions are kept.
        takes_gradients: what runs asks for gradients itself, which inference mode has none of.
        makes_ordinary: make ordinary tensors, not those of inference mode, which training cannot
            take: what ranks that share the parameters gather for the first time, or what a loss
            keeps in a cache.
    """
    return _EvaluationGuard(model, takes_gradients, makes_ordinary)


class _EvaluationGuard:
    """What is being put back may be interrupted: torch raises in any line if a worker dies."""

    def __init__(self, model: Any, takes_gradients: bool, makes_ordinary: bool) -> None:
        self._model = model
        self._inner = _enter_evaluation(model, takes_gradients, makes_ordinary)

    def __enter__(self) -> None:
        _disturbed.add(self._model)
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        # It raises if something else than what was raised inside went wrong.
        is_handled = self._inner.__exit__(*error)
        _disturbed.discard(self._model)
        return is_handled


@contextmanager
def _enter_evaluation(model: Any, takes_gradients: bool, makes_ordinary: bool) -> Iterator[None]:
    with evaluation_mode(model):
        if makes_ordinary and not takes_gradients:
            with torch.no_grad():
                yield
            return
        if takes_gradients:
            # A model that trains takes them for its inputs as well.
            with torch.enable_grad():
                yield
            return
        try:
            with torch.inference_mode():
                yield
        finally:
            _make_ordinary(model)


def _make_ordinary(model: Any) -> None:
    """Put an ordinary tensor where a module kept one of inference mode: training cannot take it."""
    for module in model.modules():
        attributes = vars(module)
        for name in attributes.keys() - _OF_TORCH:
            new = _replace_inference_tensors(attributes[name], set())
            if new is not attributes[name]:
                attributes[name] = new


def _replace_inference_tensors(value: Any, seen: set[int]) -> Any:
    """Return what takes the place of a value, itself where nothing in it is of inference mode.

    Written to is only what has to be: a container may refuse, or hold itself.
    """
    if isinstance(value, torch.Tensor):
        return value.clone() if value.is_inference() else value
    if not isinstance(value, dict | list | tuple) or id(value) in seen:
        return value
    seen.add(id(value))
    places = list(value.items() if isinstance(value, dict) else enumerate(value))
    new = {place: _replace_inference_tensors(item, seen) for place, item in places}
    changed = {place: new[place] for place, item in places if new[place] is not item}
    if not changed or (isinstance(value, tuple) and type(value) is not tuple):
        return value
    if isinstance(value, tuple):
        return tuple(new.values())
    for place, item in changed.items():
        value[place] = item
    return value


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode, and everything back afterwards.

    Every module has its own mode and its buffers again, and all random states are those from
    before. So has an embedding with `max_norm` its weights, which a look-up writes to, and a model
    its parameters that are not trained, see `kept_frozen`.
    """
    modes = [(module, module.training) for module in model.modules()]
    held = [m for m in model.modules() if getattr(m, "max_norm", None) is not None]
    # Others than embeddings may have a `max_norm` as well.
    weights = [getattr(module, "weight", None) for module in held]
    bounded = [weight for weight in weights if isinstance(weight, torch.nn.Parameter)]
    contents = [weight.detach().clone() for weight in bounded]
    with kept_random_states():
        model.eval()
        try:
            with kept_buffers(model), kept_frozen(model):
                yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for weight, content in zip(bounded, contents, strict=True):
                    weight.copy_(content)


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put Python's, numpy's and torch's random states back, those of devices too."""
    states = rng.global_random_states()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    others = rng.device_states(rng.other_accelerators())
    try:
        yield
    finally:
        rng.restore(states)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        if others:
            rng.set_device_states(others)


@contextmanager
def kept_buffers(model: Any) -> Iterator[None]:
    """Put every buffer back, its contents too, and forget those that came new.

    Those that nobody wrote to are left alone: a run saves, and keeps before each step, the buffers
    whose version has changed.
    """
    held = [
        (
            module._buffers,
            dict(module._buffers),
            [_KeptBuffer.of(b) for b in module._buffers.values() if b is not None],
        )
        for module in model.modules()
        if module._buffers
    ]
    without = [module._buffers for module in model.modules() if not module._buffers]
    try:
        yield
    finally:
        for holder in without:
            holder.clear()
        for holder, buffers, kept in held:
            holder.clear()
            holder.update(buffers)
            for buffer in kept:
                buffer.put_back()


@dataclass(frozen=True)
class _KeptBuffer:
    """A buffer, and what was in it."""

    buffer: torch.Tensor
    version: int | None
    content: torch.Tensor

    @classmethod
    def of(cls, buffer: torch.Tensor) -> "_KeptBuffer":
        return cls(buffer, _version_of(buffer), buffer.detach().clone())

    @torch.no_grad()
    def put_back(self) -> None:
        # Nobody can write to one that is expanded, this neither.
        is_plain = self.buffer.layout == torch.strided
        if is_plain and 0 in self.buffer.stride():
            return
        is_written = _version_of(self.buffer) != self.version
        # What is written through `.data` does not count as a version.
        if is_written or (is_plain and not torch.equal(self.buffer, self.content)):
            self.buffer.copy_(self.content)


def _version_of(buffer: torch.Tensor) -> int | None:
    # Those of inference mode count none.
    return None if buffer.is_inference() else buffer._version
