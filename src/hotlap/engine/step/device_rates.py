"""`DeviceRates`: the learning rates as tensors on the device, which fused kernels read."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.engine.step.split_updates import FORKS, SplitUpdates

NOT_HELD = ("params", "lr", "initial_lr", "foreach", "fused", "capturable")
"""What of a group a graph does not hold as a constant, or what is set while it is captured."""


class DeviceRates:
    """The learning rates as tensors on the device, written to when a schedule has moved them.

    The optimizer's groups keep their plain numbers for schedules and checkpoints; the tensors
    stand in for them while the optimizer steps.
    """

    def __init__(self, optimizer: Any, device: Cuda) -> None:
        self._optimizer, self._device = optimizer, device
        self.all = self._zeros(len(optimizer.param_groups))
        """Shape (groups,)."""
        self.tensors = list(self.all.unbind())
        """The same, a scalar for each group."""
        self._last: list[Any] = [None] * len(self.tensors)
        self._streams: list[Any] = []
        """For parts of an update that is captured."""

    def _zeros(self, groups: int) -> torch.Tensor:
        return torch.zeros(groups, dtype=torch.float32, device=self._device.name)

    def follow(self) -> None:
        """Write rates that have changed."""
        groups = self._optimizer.param_groups
        self.join_groups()
        for number, (group, tensor) in enumerate(zip(groups, self.tensors, strict=True)):
            rate = group["lr"]
            if isinstance(rate, torch.Tensor):
                tensor.copy_(rate)
            elif rate != self._last[number]:
                tensor.fill_(rate)
                self._last[number] = rate

    def join_groups(self) -> None:
        """Have a rate of each group: some come later, with parameters that were frozen before."""
        groups = len(self._optimizer.param_groups)
        if groups != len(self.tensors):
            self.all = self._zeros(groups)
            self.tensors, self._last = list(self.all.unbind()), [None] * groups

    def constant_hyperparameters(self) -> Any:
        """Return what else the groups say."""
        return [
            {key: value for key, value in group.items() if key not in NOT_HELD}
            for group in self._optimizer.param_groups
        ]

    @contextlib.contextmanager
    def use_device_rates(self) -> Iterator[None]:
        """Let the groups ask for fused kernels that read their rate from the device.

        They are `capturable` only where they are captured: torch raises without it there, and
        warns of it elsewhere. The fused kernels are the same.
        """
        groups = self._optimizer.param_groups
        before = [dict(group) for group in groups]
        is_capturing = self._device.is_capturing()
        for group, tensor in zip(groups, self.tensors, strict=True):
            group.update({"lr": tensor, "fused": True, "foreach": False})
            if "capturable" in group:
                group["capturable"] = is_capturing
        # What is queued only once, and repeated, may take its time to be put together.
        updates = self._split_updates() if is_capturing else contextlib.nullcontext()
        try:
            with updates:
                yield
        finally:
            for group, old in zip(groups, before, strict=True):
                group.update(old)

    def _split_updates(self) -> SplitUpdates:
        # Made once: torch deals them out of a pool, and others may have those that come later.
        if not self._streams:
            self._streams = [self._device.new_stream() for _ in range(FORKS)]
        return SplitUpdates(self._device, self._streams)
