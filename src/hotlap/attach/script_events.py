"""Patches that hear events beside the steps: `eval()`, `set_epoch`, saving, `empty_cache`.

The patches are of the same kind as those of `seams`: of methods, and without effect once nobody
listens.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.distributed import DistributedSampler

from hotlap import compat
from hotlap.attach import scaler_events
from hotlap.attach.listener import Listener, State
from hotlap.attach.method_patches import patch_classes, tell_of_calls
from hotlap.trace import event_kinds

_FILES = {
    "_open_zipfile_reader": event_kinds.LOAD,
    "_open_zipfile_writer_file": event_kinds.SAVE,
    "_open_zipfile_writer_buffer": event_kinds.SAVE,
}
"""Classes of torch's that `torch.load` and `torch.save` make one of: the functions' own names are
copied by `from torch import ...`."""
_EMPTY = ("_cuda_emptyCache", "_accelerator_emptyCache")
"""Functions of `torch._C` that empty the cache of GPU memory, looked up there at each call. The
second calls no other of them."""


def patch() -> None:
    """Tell of what happens outside of the step itself, for rules about mistakes."""
    scaler_events.patch()
    tell_of_calls(DistributedSampler, "set_epoch", event_kinds.SET_EPOCH)
    tell_of_calls(DistributedDataParallel, "__init__", event_kinds.WRAP)
    tell_of_calls(torch.nn.Module, "train", event_kinds.TRAIN, otherwise=event_kinds.EVAL)
    tell_of_calls(torch.nn.Module, "zero_grad", event_kinds.ZERO_GRAD, is_told=_has_gradients)
    for holder in (torch.nn.Module, torch.optim.Optimizer, LRScheduler):
        tell_of_calls(holder, "load_state_dict", event_kinds.LOAD_STATE_DICT)
    for name, kind in _FILES.items():
        holder = compat.find_optional(name)
        if holder is not None:
            tell_of_calls(holder, "__init__", kind)
    for name in _EMPTY:
        _tell_emptying(name)
    _tell_clipping()
    _tell_of_files()
    _patch_schedules()


def _has_gradients(module: Any) -> bool:
    """Return whether there is anything to zero: a copy that averages the weights has nothing."""
    return any(parameter.grad is not None for parameter in module.parameters())


def _tell_clipping() -> None:
    """Tell of torch's functions that clip gradients.

    Names are copied by `from torch...`, as a library that was imported before has done. What
    `clip_grad_norm_` calls in its own module is not; the others call nothing there.
    """
    norms = compat.find_optional("_clip_grads_with_norm_")
    if norms is not None:
        clip_and_tell = _telling_of_clipping(norms, "max_norm")
        torch.nn.utils.clip_grad._clip_grads_with_norm_ = clip_and_tell
        if getattr(torch.nn.utils, "clip_grads_with_norm_", None) is norms:
            torch.nn.utils.clip_grads_with_norm_ = clip_and_tell
    values = _telling_of_clipping(torch.nn.utils.clip_grad_value_, "clip_value")
    torch.nn.utils.clip_grad_value_ = torch.nn.utils.clip_grad.clip_grad_value_ = values


def _telling_of_clipping(clip: Callable[..., Any], limit: str) -> Callable[..., Any]:
    """Return a function that tells of its calls; `limit` is the name of its second argument."""

    @functools.wraps(clip)
    def clip_and_tell(*args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        most = kwargs.get(limit, args[1] if len(args) > 1 else 0.0)
        # Without a limit the norm is only read, as to log it.
        is_clipping = most != math.inf and not torch.compiler.is_compiling()
        if listener is not None and is_clipping:
            listener.event_happens(event_kinds.CLIP)
        return clip(*args, **kwargs)

    return clip_and_tell


def _tell_of_files() -> None:
    """Tell what is saved, and of files that are loaded with code in them."""
    save = compat.find_optional("_save")
    if save is not None:

        @functools.wraps(save)
        def tell_and_save(value: Any, *args: Any, **kwargs: Any) -> Any:
            listener = State.listener
            if listener is not None:
                listener.object_saved(value)
            return save(value, *args, **kwargs)

        torch.serialization._save = tell_and_save
    for name in ("_load", "_legacy_load"):
        load = compat.find_optional(name)
        if load is not None:
            setattr(torch.serialization, name, _telling_of_pickles(load))


def _telling_of_pickles(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def tell_and_load(file: Any, location: Any, unpickler: Any, *args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        if listener is not None and unpickler.__name__ != "torch._weights_only_unpickler":
            listener.file_loaded_unsafely()
        return load(file, location, unpickler, *args, **kwargs)

    return tell_and_load


def _tell_emptying(name: str) -> None:
    """Tell of the calls of a function of `torch._C` that empties the cache of GPU memory."""
    original = compat.find_optional(name)
    if original is None:
        return

    @functools.wraps(original)
    def tell_and_empty(*args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        if listener is not None and not torch.compiler.is_compiling():
            listener.event_happens(event_kinds.EMPTY_CACHE)
        return original(*args, **kwargs)

    setattr(torch._C, name, tell_and_empty)


def _patch_schedules() -> None:
    """Tell of the steps of schedules, also of classes that the script defines later.

    The one that a schedule takes when it is made is not the script's.
    """
    patch_classes(LRScheduler, {"step": _tell_steps})
    initial = compat.find_optional("LRScheduler._initial_step")

    def _initial_step(self: Any) -> None:
        is_outermost = event_kinds.SCHEDULER_STEP not in State.happening
        State.happening.add(event_kinds.SCHEDULER_STEP)
        try:
            initial(self)
        finally:
            if is_outermost:
                State.happening.discard(event_kinds.SCHEDULER_STEP)

    if initial is not None:
        LRScheduler._initial_step = _initial_step


def _tell_steps(kind: Any) -> None:
    def tell_which(listener: Listener, schedule: Any) -> None:
        listener.schedule_steps(schedule)

    tell_of_calls(kind, "step", event_kinds.SCHEDULER_STEP, before=tell_which)
