"""The only place that assigns to torch's classes.

Methods are patched on classes, never names in modules, because `from torch... import ...` copies
names. Every patch calls what it replaced, and does nothing else once `listener` is None.
"""

import contextlib
import functools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import dataloader as _dataloader
from torch.utils.data.distributed import DistributedSampler

from hotlap import compat
from hotlap.trace import events
from hotlap.trace.identity import ByIdentity

_OURS = "_hotlap"
"""Attribute of a function that we have put in place of another."""


class Listener:
    """What an attached session may listen to; every method may be left as it is."""

    wants_phases = False
    """True to be told of batches, forwards and backwards, not only of iterators and steps."""
    wants_events = False
    """True to be told of what else the script does, see `happened`."""
    wants_roots = False
    """True to be asked which modules are trained, before their first forward."""

    def iterator_wanted(self, loader: Any) -> None:
        """A DataLoader is about to make an iterator."""

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        """A DataLoader has made an iterator."""

    def batch_begins(self, iterator: Any) -> None:
        """The script asks for a batch."""

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        """A batch is about to be handed to the script; return it, or another one."""
        del iterator
        return batch

    def root_wanted(self, module: Any) -> bool:
        """Is this outermost module, called in training, one that an optimizer trains?"""
        del module
        return False

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A training forward of a root begins; return its positional inputs, or others."""
        del root
        return inputs

    def forward_ends(self, root: Any, output: Any) -> None:
        """The outermost forward of a root has returned `output`."""

    def backward_begins(self, loss: Any) -> None:
        """The outermost backward begins."""

    def backward_ends(self) -> None:
        """The outermost backward has returned."""

    def zeroing_begins(self) -> None:
        """Gradients are about to be zeroed."""

    def zeroing_ends(self) -> None:
        """Gradients have been zeroed."""

    def happened(self, kind: str) -> None:
        """The script did something that is named in `hotlap.trace.events`."""

    def step_begins(self, optimizer: Any) -> None:
        """An outermost optimizer step begins."""

    def step_ends(self, optimizer: Any) -> None:
        """An outermost optimizer step has returned."""

    def step_failed(self, optimizer: Any) -> None:
        """An outermost optimizer step has raised; the script may catch that and go on."""


class _State:
    listener: Listener | None = None
    optimizers: list[weakref.ref[Any]] = []  # noqa: RUF012 (one process, one list)
    step_depth = 0
    call_depth = 0
    backward_depth = 0
    root_classes: dict[type, Any] = {}  # noqa: RUF012
    roots: ByIdentity[bool] = ByIdentity()
    happening: set[str] = set()  # noqa: RUF012


def install(listener: Listener) -> None:
    """Patch what `listener` wants to hear of. To be called once per process."""
    _State.listener = listener
    os.register_at_fork(after_in_child=go_inert)
    _patch_iterators()
    _patch_optimizers()
    if listener.wants_phases:
        _patch_batches()
        _patch_backward()
    if listener.wants_phases or listener.wants_roots:
        _patch_modules()
    if listener.wants_events:
        _patch_happenings()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let nobody hear what is done meanwhile: it is not the script's."""
    listener, _State.listener = _State.listener, None
    try:
        yield
    finally:
        _State.listener = listener


def go_inert() -> None:
    """Leave every patch in place, and make each do nothing but call what it replaced."""
    _State.listener = None


def known_optimizers() -> list[Any]:
    """Return the optimizers made so far, oldest first."""
    return [optimizer for ref in _State.optimizers if (optimizer := ref()) is not None]


def _patch_iterators() -> None:
    original = _dataloader.DataLoader._get_iterator

    def _get_iterator(self: Any) -> Any:
        listener = _State.listener
        if listener is None:
            return original(self)
        listener.iterator_wanted(self)
        iterator = original(self)
        listener.iterator_made(self, iterator)
        return iterator

    _dataloader.DataLoader._get_iterator = _get_iterator


def _patch_batches() -> None:
    original = _dataloader._BaseDataLoaderIter.__next__

    def __next__(self: Any) -> Any:
        listener = _State.listener
        if listener is None:
            return original(self)
        listener.batch_begins(self)
        # Also when it raises StopIteration: the wait for it was a wait for data.
        try:
            batch = original(self)
        except BaseException:
            listener.batch_ends(self, None)
            raise
        return listener.batch_ends(self, batch)

    _dataloader._BaseDataLoaderIter.__next__ = __next__


def _patch_backward() -> None:
    original = torch.Tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _State.listener
        if listener is None or torch.compiler.is_compiling() or _State.backward_depth:
            return original(self, *args, **kwargs)
        _State.backward_depth += 1
        listener.backward_begins(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            _State.backward_depth -= 1
            listener.backward_ends()

    torch.Tensor.backward = backward


def _patch_optimizers() -> None:
    original = torch.optim.Optimizer.__init__
    patch_step = torch.optim.Optimizer._patch_step_function
    zero_grad = torch.optim.Optimizer.zero_grad

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _State.listener is not None:
            _State.optimizers.append(weakref.ref(self))

    def patching_step(self: Any) -> None:
        patch_step(self)
        _patch_step(type(self))

    def zeroing(self: Any, *args: Any, **kwargs: Any) -> None:
        listener = _State.listener
        if listener is None:
            return zero_grad(self, *args, **kwargs)
        listener.zeroing_begins()
        try:
            return zero_grad(self, *args, **kwargs)
        finally:
            listener.zeroing_ends()

    torch.optim.Optimizer.__init__ = __init__
    torch.optim.Optimizer._patch_step_function = patching_step
    if _State.listener is not None and _State.listener.wants_phases:
        torch.optim.Optimizer.zero_grad = zeroing


def _patch_step(kind: type) -> None:
    """Wrap an optimizer's `step` outside all its hooks, which may belong to anybody.

    torch's own hooks for every step would not say that a step has raised.
    """
    original = kind.step
    if getattr(original, _OURS, False):
        return

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _State.listener
        # A subclass that overrides `step` may call the inherited one, which is wrapped as well.
        if listener is None or torch.compiler.is_compiling() or _State.step_depth:
            return original(self, *args, **kwargs)
        _State.step_depth = 1
        try:
            listener.step_begins(self)
            result = original(self, *args, **kwargs)
        except BaseException:
            _State.step_depth = 0
            listener.step_failed(self)
            raise
        _State.step_depth = 0
        listener.step_ends(self)
        return result

    setattr(step, _OURS, True)
    kind.step = step


def _patch_modules() -> None:
    """Look at outermost module calls until the first step; then only roots' classes stay patched.

    A wrapper for every module call would cost more than many a small layer.
    """
    original = torch.nn.Module.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _State.listener
        if listener is None or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        outermost = _State.call_depth == 0 and self.training and torch.is_grad_enabled()
        # What runs again inside a backward, by activation checkpointing, is part of something.
        outermost = outermost and torch._C._current_graph_task_id() == -1
        if outermost and self not in _State.roots and listener.root_wanted(self):
            _State.roots.put(self, True)
            if listener.wants_phases:
                _patch_root_class(type(self))
                return type(self).__call__(self, *args, **kwargs)
        _State.call_depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _State.call_depth -= 1

    torch.nn.Module.__call__ = __call__
    _State.root_classes[torch.nn.Module] = (original, __call__)


def stop_looking_for_roots() -> None:
    """Take the wrapper off `nn.Module`, unless somebody has wrapped it again meanwhile."""
    original, ours = _State.root_classes.get(torch.nn.Module, (None, None))
    if original is not None and torch.nn.Module.__call__ is ours:
        torch.nn.Module.__call__ = original
        del _State.root_classes[torch.nn.Module]


def _patch_root_class(kind: type) -> None:
    if kind in _State.root_classes:
        return
    original = kind.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _State.listener
        if (
            listener is None
            or torch.compiler.is_compiling()
            or self not in _State.roots
            or not (self.training and torch.is_grad_enabled())
        ):
            return original(self, *args, **kwargs)
        args = listener.forward_begins(self, args)
        output = None
        try:
            output = original(self, *args, **kwargs)
        finally:
            listener.forward_ends(self, output)
        return output

    kind.__call__ = __call__
    _State.root_classes[kind] = (original, __call__)


def _patch_happenings() -> None:
    """Tell of what happens outside of the step itself, for rules about mistakes."""
    _tell(GradScaler, "__init__", events.SCALER_MADE)
    _tell(GradScaler, "unscale_", events.UNSCALE)
    _tell(GradScaler, "update", events.SCALER_UPDATE)
    _tell(DistributedSampler, "set_epoch", events.SET_EPOCH)
    _tell(torch.nn.Module, "train", events.TRAIN, otherwise=events.EVAL)
    _tell(torch.nn.Module, "zero_grad", events.ZERO_GRAD)
    for holder in (torch.nn.Module, torch.optim.Optimizer, LRScheduler):
        _tell(holder, "load_state_dict", events.LOAD_STATE_DICT)
    for name, kind in _FILES.items():
        holder = compat.optional(name)
        if holder is not None:
            _tell(holder, "__init__", kind)
    _patch_schedules()


_FILES = {
    "_open_zipfile_reader": events.LOAD,
    "_open_zipfile_writer_file": events.SAVE,
    "_open_zipfile_writer_buffer": events.SAVE,
}
"""Classes of torch's that `torch.load` and `torch.save` make one of: the functions' own names are
copied by `from torch import ...`."""


def _tell(holder: Any, name: str, kind: str, *, otherwise: str | None = None) -> None:
    """Tell of the outermost calls of a method.

    Args:
        holder: the class that defines it.
        name: the method's.
        kind: what is told.
        otherwise: what is told instead where the method's argument is False.
    """
    original = getattr(holder, name)

    @functools.wraps(original)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _State.listener
        if listener is None or kind in _State.happening or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        _State.happening.add(kind)
        try:
            is_false = otherwise is not None and not (*args, *kwargs.values(), True)[0]
            listener.happened(otherwise if otherwise is not None and is_false else kind)
            return original(self, *args, **kwargs)
        finally:
            _State.happening.discard(kind)

    setattr(holder, name, telling)


def _patch_schedules() -> None:
    """Tell of the steps of schedules, also of classes that the script defines later.

    The one that a schedule takes when it is made is not the script's.
    """
    kinds = [LRScheduler]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each not in kinds]
        if "step" in vars(kind):
            _tell(kind, "step", events.SCHEDULER_STEP)
    initial = compat.optional("LRScheduler._initial_step")

    def _initial_step(self: Any) -> None:
        is_outermost = events.SCHEDULER_STEP not in _State.happening
        _State.happening.add(events.SCHEDULER_STEP)
        try:
            initial(self)
        finally:
            if is_outermost:
                _State.happening.discard(events.SCHEDULER_STEP)

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(LRScheduler, cls).__init_subclass__(**kwargs)
        if "step" in vars(cls) and _State.listener is not None:
            _tell(cls, "step", events.SCHEDULER_STEP)

    if initial is not None:
        LRScheduler._initial_step = _initial_step
    LRScheduler.__init_subclass__ = classmethod(__init_subclass__)  # pyright: ignore[reportAttributeAccessIssue]
