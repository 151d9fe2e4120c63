"""Patches DataLoader, Module, Optimizer and `Tensor.backward` so that they call a listener.

Methods are patched on classes, never names in modules, because `from torch... import ...` copies
names. Every patch calls what it replaced, and does nothing else once `listener` is None. Phases and
events of every step are noted in the patches themselves, which takes fewer functions in each step.
"""

import functools
import os
import weakref
from typing import Any

import torch

from hotlap import compat
from hotlap.attach import closures, loader_events, scaler_events, script_events
from hotlap.attach.listener import Listener, State, go_inert
from hotlap.trace import event_kinds
from hotlap.trace.clock import BACKWARD, FORWARD, OPTIMIZER, OTHER

_compiler = torch.compiler
_is_traced = torch.compiler.is_dynamo_compiling
"""Together with the flag it is what `is_compiling` returns, which makes twice as many calls."""
_transforms = compat.find_optional("peek_interpreter_stack") or (lambda: None)
"""Returns something inside `vmap` and `grad` of `torch.func`: modules hold no tensors there."""
_NONE: dict[str, Any] = {}
_SEVERAL = 3
"""Forwards in evaluation mode; a teacher, say, takes one of the first step."""
_OURS = "_hotlap"
"""Attribute of a function that we have put in place of another."""


def install(listener: Listener) -> None:
    """Patch what `listener` wants to hear of. To be called once per process."""
    State.listener = listener
    os.register_at_fork(after_in_child=go_inert)
    loader_events.patch_iterators()
    _patch_optimizers()
    if listener.wants_phases:
        loader_events.patch_batches()
    if listener.wants_phases or listener.wants_losses:
        _patch_backward()
    if listener.wants_phases or listener.wants_roots:
        _patch_modules()
    if listener.wants_events:
        script_events.patch()
    elif listener.wants_losses:
        scaler_events.patch_scaling()


def known_optimizers() -> list[Any]:
    """Return the optimizers made so far, oldest first."""
    return [optimizer for ref in State.optimizers if (optimizer := ref()) is not None]


def evaluates_first() -> bool:
    """True if models were evaluated before the first training forward."""
    return State.early_evaluations >= _SEVERAL


def _patch_backward() -> None:
    original = torch.Tensor.backward

    @functools.wraps(original)
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        if listener is None or _is_traced() or _compiler._is_compiling_flag or State.backward_depth:
            return original(self, *args, **kwargs)
        State.backward_depth += 1
        clock, events = listener.clock, listener.events
        if clock is not None:
            clock.note((BACKWARD, clock.now()))
        if events is not None:
            events.note(event_kinds.BACKWARD)
        for hear in listener.at_backward:
            hear(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            State.backward_depth -= 1
            for hear in listener.after_backward:
                hear()
            if clock is not None:
                # In a closure that the step has called, as Lightning's, the update follows.
                clock.note((OPTIMIZER if State.step_depth else OTHER, clock.now()))

    torch.Tensor.backward = backward


def _patch_optimizers() -> None:
    original = torch.optim.Optimizer.__init__
    patch_step = torch.optim.Optimizer._patch_step_function
    zero_grad = torch.optim.Optimizer.zero_grad

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _register(self)

    def patching_step(self: Any) -> None:
        patch_step(self)
        _patch_step(type(self))
        # One that was copied or loaded is made without `__init__`, which itself comes here too.
        if hasattr(self, "param_groups"):
            _register(self)

    # Accelerate, for one, asks for its parameters.
    @functools.wraps(zero_grad)
    def zeroing(self: Any, *args: Any, **kwargs: Any) -> None:
        listener = State.listener
        if listener is None:
            return zero_grad(self, *args, **kwargs)
        clock, events, outer = listener.clock, listener.events, OTHER
        if clock is not None:
            outer = clock.marks[-1][0]
            clock.note((OPTIMIZER, clock.now()))
        if events is not None:
            events.note(event_kinds.ZERO_GRAD)
        for hear in listener.at_zeroing:
            hear()
        try:
            return zero_grad(self, *args, **kwargs)
        finally:
            for hear in listener.after_zeroing:
                hear()
            if clock is not None:
                clock.note((outer, clock.now()))

    torch.optim.Optimizer.__init__ = __init__
    torch.optim.Optimizer._patch_step_function = patching_step
    if State.listener is not None and State.listener.wants_phases:
        torch.optim.Optimizer.zero_grad = zeroing


def _register(optimizer: Any) -> None:
    """Note an optimizer of the script's, once."""
    listener = State.listener
    if listener is None or any(ref() is optimizer for ref in State.optimizers):
        return
    # A script may make one for each of its steps.
    alive = [ref for ref in State.optimizers if ref() is not None]
    State.optimizers[:] = [*alive, weakref.ref(optimizer)]
    State.optimizers_made += 1
    # One of hotlap's own is made as if within a step, see `hide_own_optimizer`.
    if not State.step_depth:
        listener.optimizer_made(optimizer)


def _patch_step(kind: type) -> None:
    """Wrap an optimizer's `step` outside all its hooks, which may belong to anybody.

    torch's own hooks for every step would not say that a step has raised.
    """
    original = kind.step
    if getattr(original, _OURS, False):
        return

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        # A subclass that overrides `step` may call the inherited one, which is wrapped as well.
        if listener is None or _is_traced() or _compiler._is_compiling_flag or State.step_depth:
            return original(self, *args, **kwargs)
        args, kwargs = closures.run_first(self, args, kwargs)
        State.step_depth = 1
        try:
            if State.evaluated:
                _find_roots_in_evaluation(listener)
            clock, events = listener.clock, listener.events
            if clock is not None:
                clock.note((OPTIMIZER, clock.now()))
            if events is not None:
                events.note(event_kinds.OPTIMIZER_STEP)
            for hear in listener.at_step:
                hear(self)
            result = original(self, *args, **kwargs)
        except BaseException:
            State.step_depth = 0
            listener.step_failed(self)
            raise
        State.step_depth = 0
        listener.step_ends(self)
        return result

    setattr(step, _OURS, True)
    kind.step = step


def _patch_modules() -> None:
    """Look at outermost module calls in the first steps; then only roots' classes stay patched.

    A wrapper for every module call would cost more than many a small layer.
    """
    original = torch.nn.Module.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        if listener is None or _is_traced() or _compiler._is_compiling_flag or _transforms():
            return original(self, *args, **kwargs)
        outermost = State.call_depth == 0 and self.training and torch.is_grad_enabled()
        # What runs again inside a backward, by activation checkpointing, is part of something.
        outermost = outermost and torch._C._current_graph_task_id() == -1
        if outermost and self not in State.roots and listener.root_wanted(self):
            State.roots.put(self, True)
            if listener.wants_phases:
                is_own = type(self).__call__ is not __call__
                _patch_class(type(self))
                # A `__call__` of the class's own has been called already, and has called this one.
                if is_own:
                    return _call_root(listener, original, self, *args, **kwargs)
                return type(self).__call__(self, *args, **kwargs)
        if not (self.training or State.call_depth):
            State.early_evaluations += not State.roots.ids
            if torch.is_grad_enabled():
                State.evaluated[id(self)] = weakref.ref(self)
        is_other = type(self) not in State.patched_classes and not State.call_depth
        if is_other and listener.wants_others and _is_other(listener, self):
            is_own = type(self).__call__ is not __call__
            _patch_class(type(self))
            if is_own:
                return _call_untrained(listener, original, self, args, kwargs)
            return type(self).__call__(self, *args, **kwargs)
        State.call_depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            State.call_depth -= 1

    torch.nn.Module.__call__ = __call__
    State.patched_classes[torch.nn.Module] = (original, __call__)


def _find_roots_in_evaluation(listener: Listener) -> None:
    """A first step begins: models that it trains may be in evaluation mode, as libraries give them.

    Before it their forwards are those of an evaluation for all that is known.
    """
    found = [module for refer in State.evaluated.values() if (module := refer()) is not None]
    State.evaluated.clear()
    for module in found:
        if module.training or module in State.roots:
            continue
        if listener.root_wanted(module):
            State.roots.put(module, True)
            State.trained_in_evaluation.put(module, True)
            if listener.wants_phases:
                _patch_class(type(module))


def _is_other(listener: Listener, module: Any) -> bool:
    """Return whether an outermost module is one that no optimizer trains.

    What makes samples may run in another process or thread under a plan, and what runs in a
    backward is part of a module that is computed again.
    """
    if id(module) in State.roots.ids or State.feed_depth or torch._C._current_graph_task_id() != -1:
        return False
    if not loader_events.is_main_thread():
        return False
    optimizers, is_other = State.others.get(module) or (-1, False)
    # A model may be evaluated before its optimizer is made, or be trained by and by.
    if optimizers != State.optimizers_made or (module.training and torch.is_grad_enabled()):
        is_other = listener.other_wanted(module)
        State.others.put(module, (State.optimizers_made, is_other))
    return is_other


def _call_untrained(
    listener: Listener, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module, which is no root or does not train now."""
    if State.call_depth or not listener.wants_others or not _is_other(listener, module):
        return original(module, *args, **kwargs)
    args = listener.other_forward_begins(module, args)
    # What it calls is a part of it.
    State.call_depth += 1
    try:
        output = original(module, *args, **kwargs)
    finally:
        State.call_depth -= 1
    listener.other_forward_ends(module, output)
    return output


def _call_root(listener: Listener, of_root: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a module that is trained, and let its forward be heard."""
    clock = listener.clock
    if clock is not None:
        clock.note((FORWARD, clock.now()))
    State.keywords = kwargs
    for hear in listener.at_forward:
        args = hear(module, args)
    State.keywords = _NONE
    output, outer = None, State.open_root
    State.call_depth += 1
    State.open_root = module
    try:
        output = of_root(module, *args, **kwargs)
    finally:
        State.call_depth -= 1
        State.open_root = outer
        for hear in listener.after_forward:
            hear(module, output)
    return output


def stop_looking_for_roots() -> None:
    """Take the wrapper off `nn.Module`, unless somebody has wrapped it again meanwhile."""
    original, ours = State.patched_classes.get(torch.nn.Module, (None, None))
    if original is not None and torch.nn.Module.__call__ is ours:
        torch.nn.Module.__call__ = original
        del State.patched_classes[torch.nn.Module]


def _patch_class(kind: type) -> None:
    if kind in State.patched_classes:
        return
    original = kind.__call__
    # A root that was found is not looked at again.
    before, looking = State.patched_classes.get(torch.nn.Module, (None, None))
    of_root = before if original is looking else original

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        if listener is None or _is_traced() or _compiler._is_compiling_flag or _transforms():
            return original(self, *args, **kwargs)
        if State.open_root is self:
            # Its class and a base of that are both patched.
            return of_root(self, *args, **kwargs)
        is_training = self.training or id(self) in State.trained_in_evaluation.ids
        if not (is_training and torch.is_grad_enabled()):
            is_heard = listener.wants_evaluation and (self in State.roots or self in State.copies)
            if is_heard:
                listener.evaluation_forward_begins(self)
            outer, State.open_root = State.open_root, self
            try:
                output = _call_untrained(listener, original, self, args, kwargs)
            finally:
                State.open_root = outer
            if is_heard:
                listener.evaluation_forward_ends(self, args, kwargs, output)
            return output
        if id(self) not in State.roots.ids:
            return _call_untrained(listener, original, self, args, kwargs)
        return _call_root(listener, of_root, self, *args, **kwargs)

    kind.__call__ = __call__
    State.patched_classes[kind] = (original, __call__)
