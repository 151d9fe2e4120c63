"""`Update`: zeroes, unscales and clips gradients; steps the optimizer or skips the update."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch

from hotlap.compat import restart_growth
from hotlap.distributed.shares import is_share, whole_of
from hotlap.engine.checks.running_statistics import Statistics
from hotlap.engine.step.passes import trained_tensors
from hotlap.techniques import StepTarget

_LEAST_SCALE = 2.0**-24
"""Of a loss: what is smaller than all that float16 can hold helps no gradient."""


class Update:
    """Zeroes, unscales and clips gradients, and steps the optimizer.

    Whether it steps is decided elsewhere, see `hotlap.engine.step.step`.

    Args:
        model: whose running statistics are put back where an update is left out.
        optimizer: over the tensors that are trained.
        target: what the plan's techniques hung onto the step.
        clip_norm: see `Task`.
        clip_value: see `Task`.
        check_finite: updates may be left out.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        target: StepTarget,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        check_finite: bool = True,
    ) -> None:
        self.optimizer, self.target = optimizer, target
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.check_finite = check_finite
        self.clips = clip_norm is not None or clip_value is not None
        self.has_begun = False
        """The newest step has begun to change weights, or the optimizer's state."""
        self.recorder: Any = None
        """Put around the next update, and only that: in it compiled code would run plain."""
        self.adapt_optimizer: Callable[[], Any] = contextlib.nullcontext
        """Makes what lets the optimizer be as the executor of its step needs it."""
        self.zero: Callable[[], None] = target.zero_grad or _zeroing(optimizer)
        """Drops the gradients."""
        statistics = Statistics(model) if check_finite else None
        self.statistics = statistics if statistics and statistics.are_kept else None

    def begin(self) -> None:
        """Drop the last step's gradients, and remember what a step changes before its update."""
        self.zero()
        if self.statistics is not None:
            self.statistics.keep()

    def unscale(self) -> None:
        """Undo the scale of the loss, before anything looks at the gradients' size."""
        if self.target.scaler is not None:
            self.target.scaler.unscale_(self.optimizer)

    def clip(self) -> torch.Tensor | None:
        """Clip the gradients; return the norm that they had, None if no norm is clipped."""
        trained = [each for each in trained_tensors(self.optimizer) if each.grad is not None]
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(trained, self.clip_value)
        if self.clip_norm is None:
            return None
        norm = torch.nn.utils.clip_grad_norm_(trained, self.clip_norm)
        # Of shares each rank knows its own part until they are added up.
        return whole_of(norm) if is_share(norm) else norm

    def clip_and_apply(self) -> bool:
        """Clip and step, where the host decides; return False if the update was left out."""
        if self.clips:
            norm = self.clip()
            if norm is not None and self.check_finite and not math.isfinite(float(norm)):
                return self.leave_out()
        self.has_begun = True
        if self.target.scaler is None and self.recorder is None:
            self.optimizer.step()
        elif not self._step_watched():
            return self.leave_out(scaler_knows=True)
        for work in self.target.after_update:
            work()
        return True

    def apply_where(self, found: torch.Tensor) -> None:
        """Step with a fused optimizer, which leaves the update out where `found` is not 0.

        Args:
            found: a scalar on the device.
        """
        scaler, optimizer = self.target.scaler, self.optimizer
        recorder, self.recorder = self.recorder, None
        self.has_begun = True
        optimizer.grad_scale, optimizer.found_inf = None, found
        try:
            with recorder or contextlib.nullcontext(), self.adapt_optimizer():
                optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf
        if self.statistics is not None:
            self.statistics.put_back_where(found)
        if scaler is not None:
            scaler.update()
            # On the device, where asking for it would wait.
            scaler._scale.clamp_(min=_LEAST_SCALE)
        for work in self.target.after_update:
            work()

    def leave_out(self, *, scaler_knows: bool = False) -> bool:
        """Leave the update out, and let the scale fall; return False."""
        scaler = self.target.scaler
        if scaler is not None and not scaler_knows:
            # The scale must fall all the same, or the next step overflows like this one.
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
            restart_growth(scaler)
            _keep_scale(scaler)
        self._forget()
        return False

    def roll_back(self) -> None:
        """Forget a step that failed before its update: gradients, running statistics, scaling."""
        self.forget_unscaling()
        self._forget()

    def forget_unscaling(self) -> None:
        """Let the scaler unscale once more, which it does once a step."""
        if self.target.scaler is not None:
            self.target.scaler._per_optimizer_states.pop(id(self.optimizer), None)

    def _forget(self) -> None:
        if self.statistics is not None:
            self.statistics.put_back()
        self.zero()

    def _step_watched(self) -> bool:
        """Step through scaler and recorder; return whether every gradient was found finite."""
        recorder, self.recorder = self.recorder, None
        with recorder or contextlib.nullcontext():
            scaler = self.target.scaler
            if scaler is None:
                self.optimizer.step()
                return True
            scaler.step(self.optimizer)
            # Not by the scale, which stays where it is once it is 0.
            found = scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
            is_taken = not any(float(each) for each in found.values())
            scaler.update()
            if not is_taken:
                _keep_scale(scaler)
            return is_taken


def _keep_scale(scaler: Any) -> None:
    """Keep the scale above 0: by that the gradients would be divided."""
    if scaler.get_scale() < _LEAST_SCALE:
        scaler.update(_LEAST_SCALE)


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
