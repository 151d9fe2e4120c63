"""One forward pass where the loss and several metrics ask for the same one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hotlap.compat import calls_can_be_replaced
from hotlap.feed.fixed import same_bytes


class Once:
    """Calls of a model in evaluation: one that was made already gives what it gave.

    On the first batch every call is made, and has to give what the same call gave before, bit for
    bit, and find it unchanged. A model that draws, a measure that writes into its arguments or into
    the model's output, and hooks that want to see every call are left alone that way.

    Args:
        model: in evaluation mode, and without gradients.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._is_trusted = calls_can_be_replaced(model) and not any(
            module._forward_hooks or module._forward_pre_hooks for module in model.modules()
        )
        self._is_first = True
        self._call: Any = None
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._outputs: list[Any] = []
        """What the newest call gave, each time that it was made."""
        self._copies: list[torch.Tensor] | None = None
        """Of the first output, from before a measure had it."""

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within one batch, make no call twice."""
        if not self._is_trusted:
            yield
            return
        before = vars(self._model).get("_compiled_call_impl")
        self._call = before or self._model._call_impl
        self._model._compiled_call_impl = self._called
        try:
            yield
            self._look()
            self._is_first = False
        finally:
            if before is None:
                del self._model._compiled_call_impl
            else:
                self._model._compiled_call_impl = before
            self._given = self._copies = None
            self._outputs = []

    def _called(self, *args: Any, **named: Any) -> Any:
        is_again = self._given is not None and _are_same((args, named), self._given)
        if is_again and not self._is_first:
            return self._outputs[0]
        output = self._call(*args, **named)
        if is_again:
            self._outputs.append(output)
            return output
        self._look()
        self._given, self._outputs = (args, named), [output]
        if self._is_first:
            held = _tensors(output)
            self._copies = None if held is None else [tensor.clone() for tensor in held]
        return output

    def _look(self) -> None:
        """See whether every output of the first batch's newest call is still the same."""
        if self._is_first and len(self._outputs) > 1:
            self._is_trusted = self._is_trusted and all(map(self._is_as_copied, self._outputs))

    def _is_as_copied(self, output: Any) -> bool:
        held = _tensors(output)
        if held is None or self._copies is None or len(held) != len(self._copies):
            return False
        return all(map(same_bytes, held, self._copies))


def _are_same(left: Any, right: Any) -> bool:
    return (
        len(left[0]) == len(right[0])
        and left[1].keys() == right[1].keys()
        and all(a is b for a, b in zip(left[0], right[0], strict=True))
        and all(left[1][name] is right[1][name] for name in left[1])
    )


def _tensors(value: Any) -> list[torch.Tensor] | None:
    """Return the tensors of a nested output, None if it holds something that cannot be compared."""
    if isinstance(value, torch.Tensor):
        return [value] if value.layout == torch.strided else None
    if value is None:
        return []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return None
    found = [_tensors(part) for part in parts]
    if None in found:
        return None
    return [tensor for part in found if part is not None for tensor in part]
