"""Patches that hear what scalers of losses do: one that is not enabled does nothing.

Also of classes that replace the methods of `GradScaler` and do not call them, as that of FSDP.
"""

import functools
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from hotlap.attach.listener import Listener, State
from hotlap.attach.method_patches import patch_classes, tell_of_calls
from hotlap.trace import event_kinds


def patch() -> None:
    """Tell of the scalers that are made, and of what they do."""
    _tell_making()
    patch_classes(
        GradScaler,
        {"unscale_": _tell_unscaling, "update": _tell_updating, "scale": _tell_scaling},
    )


def patch_scaling() -> None:
    """Tell of the losses that a scaler has multiplied by its scale."""
    patch_classes(GradScaler, {"scale": _tell_scaling})


def _tell_making() -> None:
    original = GradScaler.__init__

    @functools.wraps(original)
    def make_and_tell(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        listener = State.listener
        # Before, it does not know whether it is enabled.
        if listener is not None and self.is_enabled():
            listener.event_happens(event_kinds.SCALER_MADE)

    GradScaler.__init__ = make_and_tell


def _tell_unscaling(kind: Any) -> None:
    """Tell when a scaler begins to divide gradients by its scale, and whose it has divided."""

    def tell_whose(listener: Listener, scaler: Any, optimizer: Any) -> None:
        listener.gradients_unscaled(optimizer, scaler)

    unscale = event_kinds.UNSCALE
    tell_of_calls(kind, "unscale_", unscale, is_told=_is_enabled, after=tell_whose)


def _tell_updating(kind: Any) -> None:
    tell_of_calls(kind, "update", event_kinds.SCALER_UPDATE, is_told=_is_enabled)


def _is_enabled(scaler: Any) -> bool:
    return scaler.is_enabled()


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
