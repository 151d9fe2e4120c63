"""`RatesAhead`: a table on the device of a schedule's next learning rates.

A schedule that steps with the optimizer must not step where an update is left out, which only the
device knows. So it is given the rates of the next updates, and counts those that it takes; the
schedule itself follows when somebody needs it.
"""

import copy
from typing import Any

import torch
from torch.optim import lr_scheduler

from hotlap.device.accelerator import Cuda

_SIZE = 256
"""Updates ahead. After as many the host waits for the device once."""
_FORESEEN = (
    lr_scheduler.StepLR,
    lr_scheduler.MultiStepLR,
    lr_scheduler.ConstantLR,
    lr_scheduler.LinearLR,
    lr_scheduler.ExponentialLR,
    lr_scheduler.PolynomialLR,
    lr_scheduler.CosineAnnealingLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
)
"""Schedules whose next rates follow from their state alone."""


class RatesAhead:
    """Keeps the rates of the next updates on the device.

    Args:
        scheduler: steps with every update that is taken.
        optimizer: whose rates it sets.
        device: a CUDA device.
    """

    def __init__(self, scheduler: Any, optimizer: Any, device: Cuda) -> None:
        self._scheduler, self._optimizer = scheduler, optimizer
        groups = len(optimizer.param_groups)
        self._device = device
        self._table = self._empty_table(groups)
        self._taken = torch.zeros((), dtype=torch.int64, device=device.name)
        self._attempted = self._known = self._followed = 0
        """Updates that were tried since the table was written, rates in it, and steps that the
        schedule itself has made since then."""
        self._seen: list[Any] | None = None
        """Rates of the groups, as this has left them."""
        self._held: list[float] | None = None
        """Rates of all updates in the table, where the next ones are not known."""
        self.problem: str | None = None
        """Why the next rates are not known any more; None if they are."""

    def _empty_table(self, groups: int) -> torch.Tensor:
        # As the fused kernels read them, whatever the script's default format is.
        return torch.zeros(groups, _SIZE, dtype=torch.float32, device=self._device.name)

    def prepare(self, count: int) -> bool:
        """Have the rates of so many more updates on the device; False if they cannot be known."""
        now = self._rates_now()
        if self.problem is None and self._seen is not None and now != self._seen:
            self._give_up(now)
        if self.problem is None and self._attempted + count > self._known:
            self.settle()
            rates = foresee(self._scheduler, self._optimizer, _SIZE)
            if len(rates) < count:
                self.problem = "the schedule changes more than the learning rate, or ends"
                return False
            self._table[:, : len(rates)].copy_(_as_tensor(rates).t())
            self._taken.zero_()
            self._attempted = self._followed = 0
            self._known = len(rates)
            self._seen = self._rates_now()
        return self.problem is None

    def begin(self, count: int) -> None:
        """Have what `write` reads on the device, for so many updates.

        Where the next rates are not known it is the current one, and the host steps the schedule.
        """
        if self.prepare(count):
            return
        rates = [float(rate) for rate in self._rates_now()]
        if rates != self._held or self._attempted + count > _SIZE:
            if len(rates) != len(self._table):
                self._table = self._empty_table(len(rates))
            self._table.copy_(_as_tensor(rates).unsqueeze(1).expand_as(self._table))
            self._taken.zero_()
            self._attempted = 0
            self._held = rates

    def _give_up(self, rates: list[Any]) -> None:
        """Let the host step the schedule from now on, with rates that somebody else has set."""
        self.settle()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.problem = "the learning rate was set during the run"

    def _rates_now(self) -> list[Any]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def hold(self) -> None:
        """Follow the schedule no further: the rates stay those that the groups have now."""
        self.settle()
        self.problem = "the schedule is not followed any more"

    def write(self, rates: torch.Tensor) -> None:
        """Write the rates of the next update, shape (groups,); to be captured."""
        rates.copy_(self._table.index_select(1, self._taken.reshape(1)).squeeze(1))

    def note(self, found: torch.Tensor) -> None:
        """Note whether an update was taken; to be captured.

        Args:
            found: a scalar, 0 if it was.
        """
        self._taken.add_(found.eq(0))

    def count(self, attempts: int) -> None:
        """Count updates that the device was told to try."""
        self._attempted += attempts

    def settle(self) -> None:
        """Let the schedule follow the updates that were taken; waits for the device."""
        if self.problem is not None or self._attempted == self._followed:
            return
        taken = int(self._taken)
        for _ in range(taken - self._followed):
            self._scheduler.step()
        self._followed = taken
        if self._attempted != taken:
            # Updates were left out, and will be looked for only once.
            self.forget()
        self._seen = self._rates_now()

    def forget(self) -> None:
        """Forget the rates in the table."""
        self._known = self._attempted = self._followed = 0
        self._taken.zero_()
        self._seen = None


def _as_tensor(rates: list[Any]) -> torch.Tensor:
    return torch.tensor(rates, dtype=torch.float32, device="cpu")


def why_unforeseen(scheduler: Any, optimizer: Any) -> str | None:
    """Return why a schedule's next rates are not known in advance, None if they are."""
    if scheduler is None:
        return None
    if not is_foreseen(scheduler):
        return f"the next rates of {type(scheduler).__name__} are not known in advance"
    if any(not isinstance(group["lr"], float | int) for group in optimizer.param_groups):
        return "the optimizer's learning rate is a tensor"
    return None


def is_foreseen(scheduler: Any) -> bool:
    """Return whether a schedule's next rates follow from its state, and asking changes nothing.

    A user's own function may count its calls, or draw.
    """
    if isinstance(scheduler, lr_scheduler.SequentialLR | lr_scheduler.ChainedScheduler):
        return all(map(is_foreseen, scheduler._schedulers))
    return type(scheduler) in _FORESEEN or hasattr(scheduler, "hotlap_name")


def foresee(scheduler: Any, optimizer: Any, most: int) -> list[list[float]]:
    """Return the rates of the next updates, each that of every group; fewer where they end.

    Schedule and optimizer are afterwards as they were.

    Args:
        scheduler: of which `is_foreseen` is true.
        optimizer: whose rates it sets.
        most: updates to look ahead.
    """
    groups = optimizer.param_groups
    state, before = copy.deepcopy(scheduler.state_dict()), [dict(group) for group in groups]
    found: list[list[float]] = []
    # A schedule warns where no step of the optimizer came before its own.
    has_stepped = getattr(optimizer, "_opt_called", False)
    optimizer._opt_called = True
    try:
        for _ in range(most):
            if any(_moved(group, old) for group, old in zip(groups, before, strict=True)):
                break
            found.append([group["lr"] for group in groups])
            scheduler.step()
    finally:
        optimizer._opt_called = has_stepped
        scheduler.load_state_dict(state)
        for group, old in zip(groups, before, strict=True):
            group.update(old)
    return found


def _moved(group: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether anything but the rate is another one, or the rate is no plain number."""
    same = all(
        group[key] is value or group[key] == value
        for key, value in before.items()
        if key not in ("lr", "params")
    )
    return not same or not isinstance(group["lr"], float | int)
