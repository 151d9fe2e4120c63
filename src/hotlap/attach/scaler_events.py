"""Patches that hear what scalers of losses do: one that is not enabled does nothing.

Also of classes that replace the methods of `GradScaler` and do not call them, as that of FSDP.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from hotlap.attach.listener import State
from hotlap.trace import event_kinds


def patch() -> None:
    """Tell of the scalers that are made, and of what they do."""
    _tell_making()
    _patch_each({"unscale_": _tell_unscaling, "update": _tell_updating, "scale": _tell_scaling})


def patch_scaling() -> None:
    """Tell of the losses that a scaler has multiplied by its scale."""
    _patch_each({"scale": _tell_scaling})


def _patch_each(patches: dict[str, Callable[[Any], None]]) -> None:
    """Patch all classes of scalers that define one of these methods, later ones too."""

    def patch_class(kind: Any) -> None:
        for name, patch_method in patches.items():
            if name in vars(kind):
                patch_method(kind)

    kinds = [GradScaler]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each not in kinds]
        patch_class(kind)

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(GradScaler, cls).__init_subclass__(**kwargs)
        if State.listener is not None:
            patch_class(cls)

    GradScaler.__init_subclass__ = classmethod(__init_subclass__)  # pyright: ignore[reportAttributeAccessIssue]


def _tell_making() -> None:
    original = GradScaler.__init__

    @functools.wraps(original)
    def make_and_tell(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        listener = State.listener
        if listener is not None and self.is_enabled():
            listener.event_happens(event_kinds.SCALER_MADE)

    GradScaler.__init__ = make_and_tell


def _tell_unscaling(kind: Any) -> None:
    """Tell when a scaler begins to divide gradients by its scale, and whose it has divided."""
    original = kind.unscale_

    @functools.wraps(original)
    def unscale_and_tell(self: Any, optimizer: Any) -> None:
        listener = _who_hears(self, event_kinds.UNSCALE)
        if listener is None:
            return original(self, optimizer)
        State.happening.add(event_kinds.UNSCALE)
        try:
            listener.event_happens(event_kinds.UNSCALE)
            original(self, optimizer)
            listener.gradients_unscaled(optimizer, self)
        finally:
            State.happening.discard(event_kinds.UNSCALE)

    kind.unscale_ = unscale_and_tell


def _tell_updating(kind: Any) -> None:
    original = kind.update

    @functools.wraps(original)
    def tell_and_update(self: Any, *args: Any, **kwargs: Any) -> None:
        listener = _who_hears(self, event_kinds.SCALER_UPDATE)
        if listener is None:
            return original(self, *args, **kwargs)
        State.happening.add(event_kinds.SCALER_UPDATE)
        try:
            listener.event_happens(event_kinds.SCALER_UPDATE)
            original(self, *args, **kwargs)
        finally:
            State.happening.discard(event_kinds.SCALER_UPDATE)

    kind.update = tell_and_update


def _tell_scaling(kind: Any) -> None:
    original = kind.scale

    @functools.wraps(original)
    def scale_and_tell(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        listener = State.listener
        if listener is not None and self.is_enabled() and not torch.compiler.is_compiling():
            listener.loss_scaled(scaled, outputs)
        return scaled

    kind.scale = scale_and_tell


def _who_hears(scaler: Any, event: str) -> Any:
    """Return who is to be told of an event, None if nobody: a method may call the inherited one."""
    listener = State.listener
    if listener is None or event in State.happening or torch.compiler.is_compiling():
        return None
    return listener if scaler.is_enabled() else None
