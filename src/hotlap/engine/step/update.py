"""One optimizer step: micro-batches forward and backward, one normaliser, clipping, the update.

The gradient of a step is (sum of per-item losses) / (items of the whole step), however the step is
split. Nothing here reads a value back from a device that computes on its own.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotlap.engine.checks.mean import check_mean, is_narrow_in
from hotlap.engine.checks.running_statistics import Statistics
from hotlap.errors import RunError
from hotlap.techniques import StepTarget

MicroBatches = Sequence[tuple[int, Any]]
"""The (samples, micro-batch) of one step."""


class Step:
    """Takes optimizer steps of one model.

    Args:
        model: in training mode.
        loss: see `Task.loss`.
        optimizer: over the tensors that are trained.
        target: what the plan's techniques hung onto the step.
        clip_norm: see `Task`.
        clip_value: see `Task`.
        check_finite: leave an update out if the loss, or the norm that is clipped, is not finite.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[[Any, Any], Any],
        optimizer: Any,
        *,
        target: StepTarget,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        check_finite: bool = True,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.target = target
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.check_finite = check_finite
        self.skipped = 0
        """Updates that were left out because something was not finite."""
        self.items: Any = None
        """What the loss of the newest step counted, None if it gave a mean."""
        self.has_begun_update = False
        """The newest step has begun to change weights, or the optimizer's state."""
        self.recorder: Any = None
        """Put around the next update, and only that: in it compiled code would run plain."""
        self._clips = clip_norm is not None or clip_value is not None
        self._is_checked = False
        self._zero = target.zero_grad or _zeroing(optimizer)
        statistics = Statistics(model) if check_finite else None
        self._statistics = statistics if statistics and statistics.are_kept else None

    def __call__(self, micros: MicroBatches) -> tuple[torch.Tensor, bool]:
        """Take a step; return its loss, a scalar on the device, and whether it was taken."""
        self.has_begun_update = False
        self._zero()
        if self._statistics is not None:
            self._statistics.keep()
        loss = self._run_whole_batch(micros[0][1]) if len(micros) == 1 else self._split(micros)
        if self.check_finite and not math.isfinite(float(loss)):
            return self._leave_out(loss)
        scaler = self.target.scaler
        if scaler is not None:
            # Before anything looks at the gradients' size.
            scaler.unscale_(self.optimizer)
        if self._clips and not self._clip():
            return self._leave_out(loss)
        self.has_begun_update = True
        if scaler is None and self.recorder is None:
            self.optimizer.step()
        elif not self._update_watched():
            return self._leave_out(loss, scaler_knows=True)
        for work in self.target.after_update:
            work()
        for work in self.target.after_step:
            work()
        return loss, True

    def roll_back(self) -> None:
        """Forget a step that failed before its update: gradients, running statistics, scaling."""
        scaler = self.target.scaler
        if scaler is not None:
            # It may have unscaled, which it does once a step.
            scaler._per_optimizer_states.pop(id(self.optimizer), None)
        self._forget()

    def kept_buffers(self) -> set[int]:
        """Return the ids of the buffers that `roll_back` makes what they were."""
        return set() if self._statistics is None else self._statistics.ids

    def try_out(self, batch: Any) -> None:
        """Go forward and backward with a micro-batch, and forget the gradients."""
        value, count = self._forward(batch)
        self._backward(value if count is None else value / count)
        self._zero()

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

    def _update_watched(self) -> bool:
        """Step through scaler and recorder; return whether every gradient was found finite."""
        recorder, self.recorder = self.recorder, None
        with recorder or contextlib.nullcontext():
            scaler = self.target.scaler
            if scaler is None:
                self.optimizer.step()
                return True
            before = scaler.get_scale()
            scaler.step(self.optimizer)
            scaler.update()
            return scaler.get_scale() >= before

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

    def _run_whole_batch(self, batch: Any) -> torch.Tensor:
        # The case of most runs, written out: a call costs a third of a microsecond.
        value = self._forward(batch) if self.target.forward else self.loss(self.model, batch)
        self.items = None
        if isinstance(value, tuple):
            total, count = value
            self.items = _scalar(count)
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

    def _split(self, micros: MicroBatches) -> torch.Tensor:
        if not self._is_checked:
            self._check_mean(*micros[0])
        items = sum(samples for samples, _ in micros)
        total: Any = 0.0
        counts: list[Any] = []
        for samples, batch in micros:
            value, count = self._forward(batch)
            # A mean is weighted before its backward, a sum cannot be: how many items the other
            # micro-batches count is not known yet.
            part = value * (samples / items) if count is None else value
            self._backward(part)
            total = total + part.detach().reshape(())
            if count is not None:
                counts.append(_scalar(count))
        if not counts:
            self.items = None
            return total
        if len(counts) != len(micros):
            raise RunError(
                f"loss() returned (sum, count) for {len(counts)} of {len(micros)} micro-batches of "
                "a step, and a mean for the others. Return the same form for all."
            )
        count = self.items = sum(counts[1:], counts[0])
        gradients = [
            parameter.grad for parameter in self._trained_parameters() if parameter.grad is not None
        ]
        torch._foreach_div_(gradients, count)  # pyright: ignore[reportPrivateImportUsage]
        return total / count

    def _check_mean(self, samples: int, batch: Any) -> None:
        scaler = self.target.scaler
        self._is_checked = check_mean(
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
            found |= {id(each): each for each in self._trained_parameters()}
        return [each for each in found.values() if each.requires_grad]

    def _clip(self) -> bool:
        """Clip the gradients; return whether their norm is finite."""
        norm = self._clip_gradients()
        return norm is None or not self.check_finite or math.isfinite(float(norm))

    def _clip_gradients(self) -> torch.Tensor | None:
        """Clip the gradients; return the norm that they had, None if no norm is clipped."""
        trained = [
            parameter for parameter in self._trained_parameters() if parameter.grad is not None
        ]
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(trained, self.clip_value)
        if self.clip_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(trained, self.clip_norm)

    def _trained_parameters(self) -> list[torch.Tensor]:
        return [tensor for group in self.optimizer.param_groups for tensor in group["params"]]

    def _leave_out(
        self, loss: torch.Tensor, *, scaler_knows: bool = False
    ) -> tuple[torch.Tensor, bool]:
        scaler = self.target.scaler
        if scaler is not None and not scaler_knows:
            # The scale must fall all the same, or the next step overflows like this one.
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
        self.skipped += 1
        self._forget()
        return loss, False

    def _forget(self) -> None:
        """Drop the gradients, and make the running statistics what they were."""
        if self._statistics is not None:
            self._statistics.put_back()
        self._zero()


def _scalar(number: Any) -> Any:
    if not isinstance(number, torch.Tensor):
        return number
    if number.numel() != 1:
        raise RunError(
            f"loss() returned a count of shape {tuple(number.shape)}. Expected: (sum, count), "
            "where count is one number: how many items are summed."
        )
    return number.reshape(())


def _zeroing(optimizer: Any) -> Callable[[], None]:
    """Return what forgets all gradients: torch's own way takes ten times as long to say so."""
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        return optimizer.zero_grad

    def forget() -> None:
        # Looked up each time: loading a state replaces the list.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return forget
