"""Replaces a method by one that tells of its calls, in a class and in all that derive from it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hotlap.attach.listener import Listener, State

PatchClass = Callable[[Any], None]
"""Patches one class that defines a method."""


def tell_of_calls(
    holder: Any,
    name: str,
    kind: str,
    *,
    otherwise: str | None = None,
    is_told: Callable[[Any], bool] = lambda _: True,
    before: Callable[[Listener, Any], None] = lambda _listener, _self: None,
    after: Callable[..., None] = lambda _listener, _self, *_args, **_kwargs: None,
) -> None:
    """Tell of the outermost calls of a method.

    Args:
        holder: the class that defines it.
        name: the method's.
        kind: what is told.
        otherwise: what is told instead where the method's argument is False.
        is_told: whether calls of an object are told of.
        before: called with the listener and the object once the call was told of.
        after: called with these, and the method's arguments, once it has returned.
    """
    original = getattr(holder, name)

    @functools.wraps(original)
    def tell_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = State.listener
        if listener is None or kind in State.happening or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        if not is_told(self):
            return original(self, *args, **kwargs)
        State.happening.add(kind)
        try:
            is_false = otherwise is not None and not (*args, *kwargs.values(), True)[0]
            listener.event_happens(otherwise if otherwise is not None and is_false else kind)
            before(listener, self)
            returned = original(self, *args, **kwargs)
            after(listener, self, *args, **kwargs)
            return returned
        finally:
            State.happening.discard(kind)

    setattr(holder, name, tell_and_call)


def patch_classes(base: Any, patches: Mapping[str, PatchClass]) -> None:
    """Patch a class and all that derive from it, later ones too, where they define a method.

    Args:
        base: the class.
        patches: name of a method -> what patches a class that defines it.
    """

    def patch_class(kind: Any) -> None:
        for name, patch_method in patches.items():
            if name in vars(kind):
                patch_method(kind)

    kinds = [base]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each not in kinds]
        patch_class(kind)

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        if State.listener is not None:
            patch_class(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)
