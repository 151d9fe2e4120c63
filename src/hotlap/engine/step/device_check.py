"""`DeviceCheckStep`: the device skips the update if the loss is not finite, without a host sync."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.engine.step.update import MicroBatches, Step


class TakenFlag:
    """Whether an update was taken, known to the device. To ask is to wait for it.

    Args:
        found: 1 if something was not finite, else 0; a scalar on the device.
    """

    def __init__(self, found: torch.Tensor) -> None:
        self._found = found

    def __bool__(self) -> bool:
        return float(self._found) == 0

    def zero_where_skipped(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss, 0 where the update was left out; nobody waits."""
        return torch.where(self._found == 0, loss, torch.zeros_like(loss))


class DeviceCheckStep(Step):
    """Takes steps with a fused optimizer, which leaves an update out where `found_inf` says so.

    Args:
        arguments: see `Step`.
        device: a CUDA device.
        options: see `Step`.
    """

    def __init__(self, *arguments: Any, device: Cuda, **options: Any) -> None:
        self._device = device
        self._left_out = device.scalar(0.0)
        self._left_out_before = 0
        self._is_ready = False
        super().__init__(*arguments, **options)

    @property
    def skipped(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Updates that were left out; to ask is to wait for the device."""
        return self._left_out_before + int(self._left_out)

    @skipped.setter
    def skipped(self, value: int) -> None:
        self._left_out_before = value
        self._left_out.zero_()

    def __call__(self, micros: MicroBatches) -> tuple[torch.Tensor, Any]:
        """Queue a step; return its loss and whether it is taken, both on the device."""
        self.has_begun_update = False
        loss, found, *items = self._queue_step(micros).unbind()
        for work in self.target.after_step:
            work()
        self.items = items[0] if items else None
        return loss, TakenFlag(found)

    def _queue_step(self, micros: MicroBatches) -> torch.Tensor:
        """Queue a step; return (loss, found), and the items if the loss counts them, shape (2,) or
        (3,), on the device."""
        if not self._is_ready:
            _make_state_fit(self.optimizer)
            self._is_ready = True
        self._zero()
        if self._statistics is not None:
            self._statistics.keep()
        loss = self._run_whole_batch(micros[0][1]) if len(micros) == 1 else self._split(micros)
        scaler = self.target.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        norm = self._clip_gradients() if self._clips else None
        found = self._find_inf(loss.reshape(()), norm)
        if scaler is not None:
            for theirs in scaler._found_inf_per_device(self.optimizer).values():
                # One decision for all: the scale falls where the update is left out.
                found = torch.maximum(theirs, found, out=theirs)
        self._update(found)
        if self._statistics is not None:
            self._statistics.put_back_where(found)
        if scaler is not None:
            scaler.update()
        for work in self.target.after_update:
            work()
        self._left_out.add_(found)
        dtype = torch.promote_types(loss.dtype, torch.float32)
        parts = [loss.to(dtype).reshape(()), found.to(dtype)]
        if self.items is not None:
            parts.append(self._count_on_device(self.items).to(dtype))
        return torch.stack(parts)

    def _count_on_device(self, count: Any) -> torch.Tensor:
        """Return a count as a scalar on the device."""
        if isinstance(count, torch.Tensor) and count.device.type == self._left_out.device.type:
            return count.reshape(())
        return self._device.scalar(float(count))

    def _find_inf(self, loss: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if not self.check_finite:
            return self._device.scalar(0.0)
        finite = torch.isfinite(loss)
        if norm is not None:
            finite = finite & torch.isfinite(norm)
        return torch.logical_not(finite).to(torch.float32)

    def _update(self, found: torch.Tensor) -> None:
        optimizer = self.optimizer
        recorder, self.recorder = self.recorder, None
        self.has_begun_update = True
        optimizer.grad_scale, optimizer.found_inf = None, found
        try:
            with recorder or contextlib.nullcontext(), self._adapt_optimizer():
                optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    @contextlib.contextmanager
    def _adapt_optimizer(self) -> Iterator[None]:
        """Let the optimizer be as its step needs it, for a subclass."""
        yield


def _make_state_fit(optimizer: Any) -> None:
    """Put the optimizer's state where fused kernels want it, and make what they would not."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # Not by [], which would make a state where there is none.
            state = optimizer.state.get(parameter) or {}
            step = state.get("step")
            if isinstance(step, torch.Tensor) and step.device != parameter.device:
                state["step"] = step.to(parameter.device, dtype=torch.float32)
            if group.get("momentum") and parameter.requires_grad:
                held = optimizer.state[parameter]
                if held.get("momentum_buffer") is None:
                    # The kernel leaves its own uninitialised where it leaves the first update out.
                    held["momentum_buffer"] = torch.zeros_like(parameter)
