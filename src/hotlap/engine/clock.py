"""`EpochClock`: seconds, steps, items and mean loss of one epoch, whichever process began it."""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from hotlap.device.accelerator import Device
from hotlap.engine.step.device_decision import TakenFlag
from hotlap.engine.step.sums import add_to, wide_format, widen
from hotlap.engine.steps import StepDone
from hotlap.errors import RunError

_AT_ONCE = 64
"""Steps that are added up together."""


class EpochClock:
    """Time and loss of one epoch; on a device of its own the loss is summed there, and read once.

    Args:
        device: that the steps run on.
        begun: what `to_json` gave, if the epoch was begun before.
    """

    def __init__(self, device: Device, begun: Mapping[str, Any] | None = None) -> None:
        self.device = device
        self.steps = begun["steps"] if begun else 0
        self._items: Any = begun["items"] if begun else 0
        """Of the steps that were taken."""
        self.timed = self.timed_steps = 0
        """Samples, and steps, since this process took the epoch up."""
        self._waiting: list[tuple[Any, Any, Any]] = []
        """(loss, found, items) of steps that are not in the sums yet."""
        begun_loss = begun["loss"] if begun else 0.0
        # Nobody waits for a host's own number, and adding tensors up takes six times as long.
        self._loss: Any = begun_loss
        if device.has_own_memory:
            zero = widen(torch.zeros((), device=device.name))
            self._loss, self._items = zero + begun_loss, zero + self._items
        self._begin = time.perf_counter()

    @property
    def totals(self) -> tuple[Any, Any]:
        """The sums so far: losses times items, and items."""
        self._sum_up()
        return self._loss, self._items

    def add(self, step: StepDone) -> None:
        """Count a step in."""
        self.steps += step.count
        self.timed += step.samples
        self.timed_steps += step.count
        if step.totals is not None:
            self._loss, self._items = step.totals
            return
        items = step.samples if step.items is None else step.items
        if not self.device.has_own_memory:
            if step.is_taken:
                self._loss += float(step.loss) * float(items)
                self._items += float(items)
            return
        found = step.is_taken.found if isinstance(step.is_taken, TakenFlag) else None
        if found is None and not step.is_taken:
            return
        loss: torch.Tensor = step.loss.detach()
        items = items.detach() if isinstance(items, torch.Tensor) else items
        if found is None:
            # What the task has made may be written over by its next step.
            loss = loss.clone()
            items = items.clone() if isinstance(items, torch.Tensor) else items
        self._waiting.append((loss, found, items))
        if len(self._waiting) == _AT_ONCE:
            self._sum_up()

    def _sum_up(self) -> None:
        """Add what waits to the sums: each launch costs as much for one step as for many."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        zero = torch.zeros((), device=self.device.name)
        losses, found, items = (list(column) for column in zip(*waiting, strict=True))
        add_to(
            (self._loss, self._items),
            _stack([loss.reshape(()) for loss in losses]),
            _stack([zero if each is None else each for each in found]),
            _column(items, self.device),
        )

    def read(self) -> tuple[float, float]:
        """Return seconds, and the mean loss over the items whose updates were taken, else NaN."""
        self._sum_up()
        items = float(self._items)
        if items < 0:
            raise RunError(
                f"the counts that loss() returned in this epoch add up to {items:g}, and a "
                "negative count reverses the gradient. Return (sum, count) from loss() with a "
                "count of 0 or more."
            )
        loss = float(self._loss) / items if items else math.nan
        self.device.synchronize()
        return time.perf_counter() - self._begin, loss

    def to_json(self) -> dict[str, Any]:
        """Return what `begun` takes."""
        self._sum_up()
        return {
            "steps": self.steps,
            "items": float(self._items),
            "loss": float(self._loss),
        }


def _stack(numbers: list[torch.Tensor]) -> torch.Tensor:
    if len({each.dtype for each in numbers}) == 1:
        return widen(torch.stack(numbers))
    return torch.stack([widen(each) for each in numbers])


def _column(items: list[Any], device: Device) -> Any:
    """Return what each step counted, one number if all are the same; scalars may be among them."""
    if any(isinstance(each, torch.Tensor) for each in items):
        return _stack([torch.as_tensor(each, device=device.name).reshape(()) for each in items])
    if len({*items}) == 1:
        return items[0]
    kind = wide_format(device.kind)
    return device.send(torch.tensor([float(each) for each in items], dtype=kind, device="cpu"))
