"""A tensor subclass for a linear layer's output, which is computed only if it is read.

`torch.nn.functional.cross_entropy` takes it chunk by chunk and never makes it; what only renames
its rows (`view`, `flatten`, a slice of positions, another float format) is followed; anything else
gets the plain tensor, with the plain gradient.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from hotlap.kernels.cross_entropy import Chunks, Setting, compute_loss
from hotlap.nested import map_tensors


@dataclass(frozen=True)
class Source:
    """What the output would be made of."""

    hidden: torch.Tensor
    """(..., features)"""
    weight: torch.Tensor
    bias: torch.Tensor | None
    product: torch.dtype
    """Format of the product."""
    dtype: torch.dtype
    """Format that it is handed on in."""
    classes_at: int
    """Dimension of the classes: the last, or 1 once positions and classes have been exchanged."""
    rows: int
    seen: Chunks

    @property
    def shape(self) -> torch.Size:
        """Shape of the output."""
        *rows, _ = self.hidden.shape
        classes = len(self.weight)
        return torch.Size([*rows[: self.classes_at], classes, *rows[self.classes_at :]])

    @property
    def is_last(self) -> bool:
        return self.classes_at == self.hidden.dim() - 1

    def materialize(self) -> torch.Tensor:
        """Return the plain output."""
        with torch.autocast(self.hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.to(self.product)
            plain = functional.linear(
                self.hidden.to(self.product), self.weight.to(self.product), bias
            ).to(self.dtype)
        return plain if self.is_last else plain.movedim(-1, self.classes_at)


class Logits(torch.Tensor):
    """See the module. Made by `of`; it holds no numbers."""

    source: Source
    plain: torch.Tensor | None

    @staticmethod
    def of(source: Source) -> "Logits":
        """Return the output of a linear layer, unmade."""
        made = torch.Tensor._make_wrapper_subclass(
            Logits,
            source.shape,
            dtype=source.dtype,
            device=source.hidden.device,
            requires_grad=True,
        )
        made.source = source
        made.plain = None
        return made

    def materialize(self) -> torch.Tensor:
        """Return the plain output, made once however often it is asked for."""
        if self.plain is None:
            self.plain = self.source.materialize()
        return self.plain

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, Logits) and first.plain is None:
            if func in _FACTS:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            follow = _FOLLOWED.get(func)
            if follow is not None:
                result = follow(first.source, args[1:], kwargs)
                if result is not None:
                    return Logits.of(result) if isinstance(result, Source) else result
        return func(*_as_plain(args), **_as_plain(kwargs))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Beneath autograd: a plain tensor made here would have no gradient.
        del types, args, kwargs
        raise RuntimeError(
            f"{func} was called, from outside of Python, on logits that were not computed. Remove "
            "`chunked_loss` from the plan for this model."
        )


def _as_plain(value: Any) -> Any:
    return map_tensors(
        value, lambda tensor: tensor.materialize() if isinstance(tensor, Logits) else tensor
    )


def _cross_entropy(source: Source, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Return the loss, or None where it needs the whole output."""
    names = ("target", "weight", "size_average", "ignore_index", "reduce", "reduction")
    given = {**dict(zip((*names, "label_smoothing"), args, strict=False)), **kwargs}
    targets = given.pop("target")
    rows = source.hidden.shape[:-1]
    if targets.is_floating_point() or targets.shape != rows or not _holds_classes(source):
        return None
    if given.pop("size_average", None) is not None or given.pop("reduce", None) is not None:
        return None
    class_weights = given.pop("weight", None)
    kind = source.hidden.device.type
    is_narrow = torch.is_autocast_enabled(kind)
    setting = Setting(
        rows=source.rows,
        dtype=source.product,
        loss_dtype=torch.float32 if is_narrow else source.dtype,
        is_scaled=source.product == torch.float16,
        seen=source.seen,
        **given,
    )
    work = _uncompiled_loss()
    return work(source.hidden, source.weight, source.bias, targets, class_weights, setting)


@functools.cache
def _uncompiled_loss() -> Callable[..., torch.Tensor]:
    """Return what Dynamo does not trace: it would do so anew for each number of losses so far."""
    disabled: Any = torch.compiler.disable(compute_loss)
    return disabled


def _holds_classes(source: Source) -> bool:
    # As cross_entropy reads it: (rows, classes), or (batch, classes, positions).
    return source.classes_at == 1 or (source.is_last and source.hidden.dim() == 1)


def _rename_rows(hidden: Callable[[Source, tuple[Any, ...]], Any]) -> Callable[..., Source | None]:
    """Return what follows an operation on the rows, which leaves the classes last."""

    def follow(source: Source, args: tuple[Any, ...], kwargs: Any) -> Source | None:
        if kwargs or not source.is_last:
            return None
        result = hidden(source, args)
        if result is None:
            return None
        return replace(source, hidden=result, classes_at=result.dim() - 1)

    return follow


def _reshape(source: Source, args: tuple[Any, ...]) -> Any:
    shape = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    if not shape or not all(isinstance(size, int) for size in shape):
        return None
    if shape[-1] == -1 and -1 not in shape[:-1]:
        # The rows are all named; what is left are the classes if the rows are as many.
        rows = shape[:-1]
        fits = torch.Size(rows).numel() == source.hidden.shape[:-1].numel()
        return source.hidden.reshape(*rows, source.hidden.shape[-1]) if fits else None
    if shape[-1] != len(source.weight):
        return None
    return source.hidden.reshape(*shape[:-1], source.hidden.shape[-1])


def _flatten(source: Source, args: tuple[Any, ...]) -> Any:
    begin, end = (*args, *(0, -1)[len(args) :])
    dims = source.hidden.dim()
    end = end + dims if end < 0 else end
    return source.hidden.flatten(begin, end) if end < dims - 1 else None


def _index(source: Source, args: tuple[Any, ...]) -> Any:
    return source.hidden[args[0]] if keeps_classes(args[0], source.hidden.dim()) else None


def keeps_classes(key: Any, dims: int) -> bool:
    """Return whether a key of a tensor is of slices, and takes all of the last dimension."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(part is Ellipsis or isinstance(part, slice) for part in parts):
        return False
    named = [part for part in parts if part is not Ellipsis]
    names_last = len(named) == dims or (Ellipsis in parts and parts[-1] is not Ellipsis)
    return not names_last or named[-1] == slice(None)


def _transpose(source: Source, args: tuple[Any, ...], kwargs: Any) -> Source | None:
    if kwargs or source.hidden.dim() != 3 or {d % 3 for d in args} != {1, 2}:
        return None
    return replace(source, classes_at=1 if source.is_last else 2)


def _permute(source: Source, args: tuple[Any, ...], kwargs: Any) -> Source | None:
    order = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return _transpose(source, (1, 2), kwargs) if tuple(order) in ((0, 2, 1), (0, -1, 1)) else None


def _cast(source: Source, args: tuple[Any, ...], kwargs: Any) -> Source | None:
    dtype = args[0] if len(args) == 1 else kwargs.get("dtype") if not args else None
    is_known = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    return replace(source, dtype=dtype) if is_known and set(kwargs) <= {"dtype"} else None


def _keep_source(source: Source, args: tuple[Any, ...], kwargs: Any) -> Source | None:
    return None if args or kwargs else source


_T = torch.Tensor
_FOLLOWED: dict[Any, Callable[..., Any]] = {
    functional.cross_entropy: _cross_entropy,
    _T.view: _rename_rows(_reshape),
    _T.reshape: _rename_rows(_reshape),
    torch.reshape: _rename_rows(_reshape),
    _T.flatten: _rename_rows(_flatten),
    torch.flatten: _rename_rows(_flatten),
    _T.__getitem__: _rename_rows(_index),
    _T.transpose: _transpose,
    torch.transpose: _transpose,
    _T.permute: _permute,
    torch.permute: _permute,
    _T.to: _cast,
    _T.float: lambda source, args, kwargs: (
        replace(source, dtype=torch.float32) if not args and not kwargs else None
    ),
    _T.contiguous: _keep_source,
}
_FACTS = frozenset(
    [
        *(getattr(_T, name).__get__ for name in ("shape", "dtype", "device", "requires_grad")),
        *(getattr(_T, name).__get__ for name in ("ndim", "is_cuda", "layout", "is_leaf")),
        *(_T.size, _T.dim, _T.ndimension, _T.numel, _T.nelement, _T.__len__),
        *(_T.is_floating_point, torch.is_floating_point, _T.element_size, torch.numel),
    ]
)
"""What can be told without the numbers."""
