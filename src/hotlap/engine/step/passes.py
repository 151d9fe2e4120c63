"""`Passes`: forward and backward of a step's micro-batches, under one normalizer.

The gradient of a step is (sum of per-item losses) / (items of the whole step), however the step is
split. Nothing here reads a value back from a device that computes on its own.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotlap.engine.checks.mean import check_mean, is_narrow_in
from hotlap.errors import RunError
from hotlap.techniques import StepTarget

MicroBatches = Sequence[tuple[int, Any]]
"""The (samples, micro-batch) of one step."""


class Passes:
    """Goes forward and backward through one model.

    Args:
        model: in training mode.
        loss: see `Task.loss`.
        optimizer: over the tensors that are trained.
        target: what the plan's techniques hung onto the step.
    """

    def __init__(
        self, model: Any, loss: Callable[[Any, Any], Any], optimizer: Any, target: StepTarget
    ) -> None:
        self.model, self.loss, self.target = model, loss, target
        self.items: Any = None
        """What the loss of the newest step counted, None if it gave a mean."""
        self.watch: Callable[[Any, Any], None] | None = None
        """Called with (sum, count), or (mean, None), of each micro-batch before its backward."""
        self.is_checked = False
        """True once the loss is known to be a mean, or need not be known."""
        self._optimizer = optimizer

    def __call__(self, micros: MicroBatches) -> torch.Tensor:
        """Add the gradients of a step to `.grad`; return its loss, a scalar on the device."""
        if len(micros) != 1:
            return self._add_up(micros)
        # The case of most runs, written out: a call costs a third of a microsecond.
        batch = micros[0][1]
        value = self._forward(batch) if self.target.forward else self.loss(self.model, batch)
        self.items = None
        if self.watch is not None:
            self.watch(*(value if isinstance(value, tuple) else (value, None)))
        if isinstance(value, tuple):
            total, count = value
            self.items = scalar(count)
            value = total if count is None else total / self.items
        loss: torch.Tensor = value
        if self.target.scaler is None:
            loss.backward()
            for work in self.target.after_backward:
                work()
        else:
            self._backward(loss)
        loss = loss.detach()
        return loss.reshape(()) if loss.ndim else loss

    def try_out(self, batch: Any) -> None:
        """Go forward and backward with a micro-batch, which adds to the gradients."""
        value, count = self._forward(batch)
        self._backward(value if count is None else value / count)

    def go_idle(self, batch: Any) -> torch.Tensor:
        """Go forward and backward with a micro-batch that adds nothing to the gradients.

        Returns:
            What it adds to the loss: 0, or NaN where it has made the gradients so.
        """
        value, _ = self._forward(batch)
        nothing = value * 0.0
        self._backward(nothing)
        return nothing.detach()

    def measure(self, batch: Any) -> float | None:
        """Return the loss of a batch, None if it comes as (sum, count)."""
        value, count = self._forward(batch)
        return float(value) if count is None else None

    def is_narrow(self, batch: Any) -> bool:
        """Return whether the loss of a batch is computed in a format of 16 bits, in part or all."""
        if self.target.forward or self.target.weights:
            return True
        value, _ = self._forward(batch)
        return is_narrow_in(value)

    def _forward(self, batch: Any) -> tuple[Any, Any]:
        """Return (sum, count), or (mean, None)."""
        if not self.target.forward:
            value = self.loss(self.model, batch)
        else:
            with contextlib.ExitStack() as stack:
                for make in self.target.forward:
                    stack.enter_context(make())
                value = self.loss(self.model, batch)
        return value if isinstance(value, tuple) else (value, None)

    def _backward(self, loss: torch.Tensor) -> None:
        scaler = self.target.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        for work in self.target.after_backward:
            work()

    def accumulate(self, micros: MicroBatches, items: int) -> tuple[torch.Tensor, Any]:
        """Add the gradients of some micro-batches of a step to `.grad`.

        Args:
            micros: one or more.
            items: samples of the whole step, by which means are weighted.

        Returns:
            Their share of the step's loss and None; or the sum and the count of the loss, by
            which nothing is divided yet.
        """
        if not self.is_checked:
            self._check_mean(*micros[0])
        total: Any = 0.0
        counts: list[Any] = []
        for samples, batch in micros:
            value, count = self._forward(batch)
            if self.watch is not None:
                self.watch(value, count)
            # A mean is weighted before its backward, a sum cannot be: how many items the other
            # micro-batches count is not known yet.
            part = value * (samples / items) if count is None else value
            self._backward(part)
            total = total + part.detach().reshape(())
            if count is not None:
                counts.append(scalar(count))
        if counts and len(counts) != len(micros):
            raise RunError(
                f"loss() returned (sum, count) for {len(counts)} of {len(micros)} micro-batches of "
                "a step, and a mean for the others. Return (sum, count) for all of them, or a "
                "mean for all."
            )
        return total, sum(counts[1:], counts[0]) if counts else None

    def divide(self, count: Any) -> None:
        """Divide the gradients by what the loss of the whole step counted."""
        found = (each.grad for each in trained_tensors(self._optimizer))
        gradients = [gradient for gradient in found if gradient is not None]
        torch._foreach_div_(gradients, count)  # pyright: ignore[reportPrivateImportUsage]

    def _add_up(self, micros: MicroBatches) -> torch.Tensor:
        items = sum(samples for samples, _ in micros)
        total, count = self.accumulate(micros, items)
        self.items = count
        if count is None:
            return total
        self.divide(count)
        return total / count

    def _check_mean(self, samples: int, batch: Any) -> None:
        scaler = self.target.scaler
        self.is_checked = check_mean(
            self.model,
            self._forward,
            batch,
            samples,
            parameters=self._differentiable_tensors(),
            is_narrow=bool(self.target.forward or self.target.weights),
            scale=1.0 if scaler is None else scaler.get_scale(),
        )

    def _differentiable_tensors(self) -> list[torch.Tensor]:
        """Return what the loss has gradients for: of masters their copies, in the model."""
        found = {id(each): each for each in self.model.parameters()}
        if not self.target.weights:
            found |= {id(each): each for each in trained_tensors(self._optimizer)}
        return [each for each in found.values() if each.requires_grad]


def trained_tensors(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors that an optimizer changes, each once: torch lets a list name one twice."""
    found = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    return list(found.values())


def scalar(number: Any) -> Any:
    """Return a count as one number, or as a tensor of shape ().

    Raises:
        RunError: it is a tensor of several numbers.
    """
    if not isinstance(number, torch.Tensor):
        return number
    if number.numel() != 1:
        raise RunError(
            f"loss() returned a count of shape {tuple(number.shape)}. Expected: (sum, count), "
            "where count is one number, how many items are summed, as in `losses.sum(), "
            "losses.numel()`."
        )
    return number.reshape(())
