"""`DeviceDecision`: the device skips the update if the loss is not finite, without a host sync."""

from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.engine.step.device_rates import DeviceRates
from hotlap.engine.step.passes import Passes
from hotlap.engine.step.rates_ahead import RatesAhead
from hotlap.engine.step.update import Update


class TakenFlag:
    """Whether an update was taken, known to the device. To ask is to wait for it.

    Args:
        found: 1 if something was not finite, else 0; a scalar on the device.
    """

    def __init__(self, found: torch.Tensor) -> None:
        self.found = found

    def __bool__(self) -> bool:
        return float(self.found) == 0


class DeviceDecision:
    """Lets a fused optimizer leave an update out where `found_inf` says so.

    Args:
        update: what is taken or left out.
        passes: for what the loss counted.
        device: a CUDA device.
        rates: that the optimizer reads, on the device.
        ahead: writes them for each update, where a schedule steps with the optimizer.
    """

    def __init__(
        self,
        update: Update,
        passes: Passes,
        device: Cuda,
        rates: DeviceRates,
        ahead: RatesAhead | None = None,
    ) -> None:
        self._update, self._passes, self._device = update, passes, device
        self._rates, self._ahead = rates, ahead
        self._left_out = device.scalar(0.0)
        self._left_out_before = 0
        self._fitted_groups = 0
        """Groups of the optimizer whose state is as fused kernels want it."""

    @property
    def skipped(self) -> int:
        """Updates that were left out; to ask is to wait for the device."""
        return self._left_out_before + int(self._left_out)

    @skipped.setter
    def skipped(self, value: int) -> None:
        """Count on from there, as a run that is resumed does."""
        self._left_out_before = value
        self._left_out.zero_()

    def decide(self, loss: torch.Tensor) -> torch.Tensor:
        """Queue the update; return (loss, found), and the items if the loss counts them, shape
        (2,) or (3,), on the device."""
        update = self._update
        groups = len(update.optimizer.param_groups)
        if self._fitted_groups != groups:
            _make_state_fit(update.optimizer)
            self._fitted_groups = groups
        update.unscale()
        norm = update.clip() if update.clips else None
        found = self._find_inf(loss.reshape(()), norm)
        scaler = update.target.scaler
        if scaler is not None:
            for theirs in scaler._found_inf_per_device(update.optimizer).values():
                # One decision for all: the scale falls where the update is left out.
                found = torch.maximum(theirs, found, out=theirs)
        if self._ahead is not None:
            self._rates.join_groups()
            self._ahead.write(self._rates.all)
        update.apply_where(found)
        if self._ahead is not None:
            self._ahead.note(found)
        self._left_out.add_(found)
        dtype = torch.promote_types(loss.dtype, torch.float32)
        parts = [loss.to(dtype).reshape(()), found.to(dtype)]
        if self._passes.items is not None:
            parts.append(self._count_on_device(self._passes.items).to(dtype))
        return torch.stack(parts)

    def report(self, decided: torch.Tensor) -> tuple[torch.Tensor, TakenFlag]:
        """Return the loss, and whether the update is taken, both on the device."""
        loss, found, *items = decided.unbind()
        for work in self._update.target.after_step:
            work()
        self._passes.items = items[0] if items else None
        return loss, TakenFlag(found)

    def forget(self) -> None:
        """Forget a step that failed: nothing of it is kept."""

    def _count_on_device(self, count: Any) -> torch.Tensor:
        """Return a count as a scalar on the device."""
        if isinstance(count, torch.Tensor) and count.device.type == self._left_out.device.type:
            return count.reshape(())
        return self._device.scalar(float(count))

    def _find_inf(self, loss: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if not self._update.check_finite:
            return self._device.scalar(0.0)
        # What is not finite leaves NaN: two kernels, where `isfinite` is made of five.
        rest = loss - loss
        if norm is not None:
            rest = rest + (norm - norm)
        return rest.ne_(0).to(torch.float32)


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
