"""Cross-entropy of a linear layer in blocks of rows; the logits never exist as a whole.

A language model's logits, (tokens, vocabulary) in float32, and their gradient are often the largest
tensors of a step. Here they are made a few rows at a time: each chunk's gradient is taken at once
and goes into those of the hidden states and the weight, and the chunk is forgotten.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from hotlap.errors import UsageError, unknown_name
from hotlap.kernels.softmax_rows import check_targets, has_kernel, take_losses

REDUCTIONS = ("mean", "sum", "none")
_FREED = (
    "backward() was called a second time on a chunked cross-entropy, whose gradients are freed by "
    "the first. Call backward() once."
)


@dataclass
class Chunks:
    """How chunks are taken, and what was seen of those that really ran."""

    limit: int = 1024
    """Rows of a chunk, where a technique has chosen them."""
    is_traced: bool = False
    """True where the loss is compiled with the layer, and chunks are put into that graph."""
    count: int = 0
    most_rows: int = 0
    """Most rows of logits that existed at once."""
    rows: int = 0
    """Rows of the last loss."""
    losses: int = 0

    def add(self, rows: int) -> None:
        """Count one chunk in."""
        self.count += 1
        self.most_rows = max(self.most_rows, rows)


@dataclass(frozen=True)
class Setting:
    """How a cross-entropy is taken."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"
    rows: int = 1024
    """Rows of a chunk."""
    dtype: torch.dtype | None = None
    """Format of the product; that of `hidden` if None."""
    loss_dtype: torch.dtype | None = None
    """Format in which losses are taken; that of the product if None."""
    is_scaled: bool = False
    """The loss will be scaled before its backward, so small gradients must not exist before."""
    is_below_autograd: bool = False
    """True inside an operator of torch's, where no gradient can be asked for."""
    seen: Chunks = field(default_factory=Chunks)

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise UsageError(unknown_name(str(self.reduction), REDUCTIONS, "reduction"))
        if type(self.rows) is not int or self.rows < 1:
            raise UsageError(
                f"rows={self.rows!r}, the rows of logits that are computed at once, is not valid. "
                "Expected: an integer of 1 or more."
            )


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    class_weights: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    rows: int = 1024,
) -> torch.Tensor:
    """Return `F.cross_entropy(F.linear(hidden, weight, bias), targets, ...)`, without the logits.

    Values and gradients are those of the plain expression up to rounding. Under autocast product
    and loss have the formats that they would have had. Only one backward may follow.

    Args:
        hidden: what the layer is given, (..., features).
        weight: the layer's, (classes, features).
        targets: classes, int64, of the shape of `hidden` without its last dimension.
        bias: the layer's, (classes,).
        class_weights: as `weight` of `F.cross_entropy`, (classes,).
        ignore_index: targets of this value count for nothing.
        label_smoothing: 0 to 1, see `F.cross_entropy`.
        reduction: `mean`, `sum`, or `none` for losses of the shape of `targets`.
        rows: rows of logits that exist at once.

    Raises:
        UsageError: shapes that do not fit, or a value that is not allowed.

    Source: Wijmans et al. 2024, arXiv 2411.09009, and Hsu et al. 2024, arXiv 2410.10989, do so in
    kernels of their own.
    """
    if hidden.shape[:-1] != targets.shape or hidden.shape[-1:] != weight.shape[1:]:
        raise UsageError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and targets "
            f"{tuple(targets.shape)} have shapes that do not match. Expected: (..., features), "
            "(classes, features) and (...)."
        )
    if targets.is_floating_point():
        raise UsageError(
            f"targets have dtype {targets.dtype}. Expected: class indices of dtype torch.int64. "
            "Class probabilities are not supported."
        )
    kind = hidden.device.type
    narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    setting = Setting(
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        rows=rows,
        dtype=narrow,
        loss_dtype=torch.float32 if narrow is not None else None,
        is_scaled=(narrow or hidden.dtype) == torch.float16,
    )
    return compute_loss(hidden, weight, bias, targets, class_weights, setting)


def compute_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    class_weights: torch.Tensor | None,
    setting: Setting,
) -> torch.Tensor:
    """Return the loss; shapes are those of `chunked_cross_entropy`, and were checked."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    setting.seen.losses += 1
    setting.seen.rows = len(flat)
    if not torch.is_grad_enabled():
        # A function is told what requires gradients, also where none are taken.
        flat, weight = flat.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
    loss = _Chunked.apply(flat, weight, bias, targets.reshape(-1), class_weights, setting)
    return loss.view(targets.shape) if setting.reduction == "none" else loss  # pyright: ignore[reportOptionalMemberAccess]


class _Chunked(torch.autograd.Function):
    """The loss; its gradients are taken in the forward where what comes behind is only a factor."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        class_weights: torch.Tensor | None,
        setting: Setting,
    ) -> torch.Tensor:
        work = Work(hidden, weight, bias, targets, class_weights, setting)
        ctx.setting = setting
        ctx.wants = ctx.needs_input_grad[:3]
        ctx.gradients = None
        # A factor per row is not known yet, and unscaled float16 gradients would vanish.
        ctx.is_early = setting.reduction != "none" and not setting.is_scaled and any(ctx.wants)
        with torch.autocast(hidden.device.type, enabled=False):
            if ctx.is_early:
                loss, ctx.gradients = work.losses_and_gradients(ctx.wants)
                return loss
            ctx.save_for_backward(hidden, weight, bias, targets, class_weights)
            return work.losses()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (factor,) = grad_outputs
        if ctx.is_early:
            if ctx.gradients is None:
                raise RuntimeError(_FREED)
            gradients, ctx.gradients = ctx.gradients, None
            # In place: another copy of the weight's gradient would be a second large tensor.
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)
        else:
            hidden, weight, bias, targets, class_weights = ctx.saved_tensors
            work = Work(hidden, weight, bias, targets, class_weights, ctx.setting)
            with torch.autocast(factor.device.type, enabled=False):
                _, gradients = work.losses_and_gradients(ctx.wants, factor)
        return (*gradients, None, None, None)


class Work:
    """One loss, chunk by chunk. Runs without autocast: formats are those of the setting."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        class_weights: torch.Tensor | None,
        setting: Setting,
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.targets, self.class_weights, self.setting = targets, class_weights, setting
        self.dtype = setting.dtype or hidden.dtype
        self.loss_dtype = setting.loss_dtype or self.dtype
        # Cast once and not once a chunk.
        self.narrow = weight.to(self.dtype)
        self.narrow_bias = None if bias is None else bias.to(self.dtype)
        self.is_in_place = (
            class_weights is None
            and targets.dtype == torch.int64
            and self.dtype != torch.float64
            and (setting.is_below_autograd or has_kernel(hidden.device.type))
        )

    def _chunks(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Give place, narrow hidden states and logits."""
        for begin in range(0, len(self.hidden), self.setting.rows):
            place = slice(begin, begin + self.setting.rows)
            part = self.hidden[place].to(self.dtype)
            logits = functional.linear(part, self.narrow, self.narrow_bias)
            self.setting.seen.add(len(part))
            yield place, part, logits

    def _loss(self, logits: torch.Tensor, place: slice, reduction: str) -> torch.Tensor:
        return functional.cross_entropy(
            logits.to(self.loss_dtype),
            self.targets[place],
            None if self.class_weights is None else self.class_weights.to(self.loss_dtype),
            ignore_index=self.setting.ignore_index,
            label_smoothing=self.setting.label_smoothing,
            reduction=reduction,
        )

    def _normaliser(self) -> torch.Tensor | None:
        """Return what the sum of all losses is divided by."""
        if self.setting.reduction != "mean":
            return None
        counted = self.targets != self.setting.ignore_index
        if self.class_weights is None:
            return counted.sum()
        # Ignored targets may lie outside of the classes.
        weights = self.class_weights.gather(0, self.targets.where(counted, 0))
        return (weights * counted).sum()

    def losses(self) -> torch.Tensor:
        """Return the reduced loss alone."""
        how = "none" if self.setting.reduction == "none" else "sum"
        parts = [self._loss(logits, place, how) for place, _, logits in self._chunks()]
        if not parts:
            return self._loss(self.hidden.new_empty(0, len(self.weight)), slice(0), how)
        if how == "none":
            return torch.cat(parts)
        normaliser = self._normaliser()
        total = torch.stack(parts).sum(dtype=self._wide_dtype())
        return (total if normaliser is None else total / normaliser).to(self.loss_dtype)

    def losses_and_gradients(
        self, wants: tuple[bool, ...], factor: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Return the sum of the chunks' losses, and the gradients of hidden, weight and bias.

        Args:
            wants: which of the three gradients.
            factor: the loss's own gradient, one number or one a row; 1 if None.
        """
        is_by_row = self.setting.reduction == "none"
        sums = _Gradients(self, wants)
        if self.is_in_place:
            return self._in_place(sums, factor)
        normaliser = self._normaliser()
        total = self.hidden.new_zeros((), dtype=self._wide_dtype())
        for place, part, logits in self._chunks():
            with torch.enable_grad():
                logits.requires_grad_()
                loss = self._loss(logits, place, "none" if is_by_row else "sum")
                if normaliser is not None:
                    loss = loss / normaliser
            given = factor[place] if is_by_row and factor is not None else factor
            (gradient,) = torch.autograd.grad(loss, logits, given)
            total += loss.detach().sum()
            sums.add(place, part, gradient)
            # Before the next chunk is made, or two of them exist at once.
            del logits, loss, gradient
        return total.to(self.loss_dtype), sums.result()

    def _in_place(
        self, sums: "_Gradients", factor: torch.Tensor | None
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Do the same with gradients that are written over the logits."""
        setting, normaliser = self.setting, self._normaliser()
        check_targets(self.targets, len(self.weight), setting.ignore_index)
        scale = torch.ones((), device=self.hidden.device)
        if normaliser is not None:
            scale = scale / normaliser
        scales = scale if factor is None else scale * factor
        losses = []
        for place, part, logits in self._chunks():
            given = scales[place] if scales.dim() else scales
            losses.append(
                take_losses(
                    logits,
                    self.targets[place],
                    given,
                    setting.ignore_index,
                    setting.label_smoothing,
                )
            )
            sums.add(place, part, logits)
            del logits
        total = torch.cat(losses).sum() if losses else scale.new_zeros(())
        return (total * scale).to(self.loss_dtype), sums.result()

    def _wide_dtype(self) -> torch.dtype:
        """Return the format in which losses are added up: many small ones would be rounded away."""
        return torch.promote_types(self.loss_dtype, torch.float32)


class _Gradients:
    """Sums over the chunks: float32 where the products are narrower."""

    def __init__(self, work: Work, wants: tuple[bool, ...]) -> None:
        self.work = work
        self.hidden = torch.empty_like(work.hidden) if wants[0] else None
        self.wide = torch.promote_types(work.dtype, torch.float32)
        self.wants_weight = wants[1]
        self.weight: torch.Tensor | None = None
        if wants[1] and not len(work.hidden):
            self.weight = torch.zeros_like(work.weight)
        has_bias = wants[2] and work.bias is not None
        self.bias = torch.zeros_like(work.bias, dtype=self.wide) if has_bias else None  # pyright: ignore[reportArgumentType]

    def add(self, place: slice, part: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add one chunk's, from the gradient of its logits."""
        if self.hidden is not None:
            self.hidden[place] = gradient @ self.work.narrow
        if self.wants_weight:
            self.weight = self._weight_with(len(part), gradient.t(), part)
        if self.bias is not None:
            self.bias += gradient.sum(0, dtype=self.bias.dtype)

    def _weight_with(self, rows: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the weight's gradient with the product of one chunk's rows."""
        if self.weight is None:
            product = left @ right
            # What nothing is added to needs no wider format.
            return product if rows == len(self.work.hidden) else product.to(self.wide)
        if self.weight.dtype == left.dtype:
            return self.weight.addmm_(left, right)
        return self.weight.add_(left @ right)

    def result(self) -> list[torch.Tensor | None]:
        """Return the three gradients in the formats of what they belong to."""
        work = self.work
        return [
            self.hidden,
            None if self.weight is None else self.weight.to(work.weight.dtype),
            None if self.bias is None else self.bias.to(work.bias.dtype),  # pyright: ignore[reportOptionalMemberAccess]
        ]
