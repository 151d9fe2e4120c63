"""Repeats a step in another dtype with the random numbers of its own dtype.

From one RNG state torch draws other numbers in float64 than in float32. A repetition in float64 of
a step that draws noise would be another step.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.nested import map_tensors

_DRAWS = torch.Tag.nondeterministic_seeded


class DrawsInOwnDtype(TorchDispatchMode):
    """Runs each operator that draws random numbers in `own`, and casts the result to `wide`.

    An operator that has nothing in `wide` is left alone.

    Args:
        own: the dtype that the step was captured in.
        wide: the dtype that it is repeated in.
    """

    def __init__(self, own: torch.dtype, wide: torch.dtype) -> None:
        super().__init__()
        self.own, self.wide = own, wide

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if _DRAWS not in func.tags:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        if "dtype" in names and not any(map(self._is_wide, args)):
            # `randn(...)`: in the dtype that is asked for, or else in the default one.
            asked = kwargs.get("dtype") or _default_of(func)
            if asked != self.wide:
                return func(*args, **kwargs)
            return self._widen(func(*args, **{**kwargs, "dtype": self.own}))
        if kwargs.get("dtype") == self.wide:
            kwargs = {**kwargs, "dtype": self.own}
        return self._in_own(func, args, kwargs)

    def _in_own(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []

        def narrow(value: Any) -> Any:
            if not self._is_wide(value):
                return value
            copy = _copy_in(self.own, value)
            copies.append((value, copy))
            return copy

        result = func(*map_tensors(args, narrow), **map_tensors(kwargs, narrow))
        if not copies:
            return result
        if func._schema.is_mutable:
            for value, copy in copies:
                value.copy_(copy)

        def widen(value: Any) -> Any:
            for original, copy in copies:
                if value is copy:
                    return original
            return self._widen(value)

        return map_tensors(result, widen)

    def _is_wide(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == self.wide

    def _widen(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype == self.own:
            return value.to(self.wide)
        return value


def _copy_in(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides: what is not contiguous is drawn in another order."""
    size, stride = value.size(), value.stride()
    # What is expanded has several places for one number: only that one can be written.
    once = [count if step else min(count, 1) for count, step in zip(size, stride, strict=True)]
    numbers = value.as_strided(once, stride)
    copy = torch.empty_strided(once, stride, dtype=dtype, device=value.device)
    return copy.copy_(numbers).as_strided(size, stride)


def _default_of(func: Any) -> torch.dtype:
    """Return the dtype of what an operator draws that is asked for none."""
    is_whole = func.overloadpacket in (torch.ops.aten.randint, torch.ops.aten.randperm)
    return torch.int64 if is_whole else torch.get_default_dtype()


@contextlib.contextmanager
def repeat_in_dtype(wide: torch.dtype, own: torch.dtype) -> Iterator[None]:
    """Make new tensors in `wide`, and draw random numbers as a step in `own` does."""
    if wide == own:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(wide)
    try:
        with DrawsInOwnDtype(own, wide):
            yield
    finally:
        torch.set_default_dtype(before)


def own_dtype(tensors: Iterator[torch.Tensor]) -> torch.dtype:
    """Return the dtype of the first floating-point tensor, float32 if there is none."""
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
