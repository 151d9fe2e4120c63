"""`Blocks`: several steps captured as one CUDA graph, with nothing of the host's between them.

Each step's batch is gathered inside the graph, at a place in the epoch's order that the graph moves
on; rates come from a table on the device; losses and flags go into one tensor, and the epoch's sums
are added up as they would be from step to step.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.device.capture import Graph, in_one_line
from hotlap.engine.step.device_decision import TakenFlag
from hotlap.engine.step.passes import MicroBatches, trained_tensors
from hotlap.engine.step.rates_ahead import RatesAhead
from hotlap.engine.step.sums import add_to
from hotlap.engine.step.update import Update
from hotlap.feed.sources.device_epoch import DeviceEpoch

log = logging.getLogger("hotlap")

_FEWEST = 2

Gradients = list[tuple[torch.Tensor, torch.Tensor | None]]
"""Trained tensors, and where a graph leaves their gradients."""


@dataclass
class Block:
    """Several steps that were queued."""

    count: int
    loss: torch.Tensor
    """Of the last one, a scalar on the device."""
    is_taken: TakenFlag
    """Of the last one."""
    items: torch.Tensor | None
    """What the loss of the last one counted, None if it gave a mean."""
    totals: tuple[torch.Tensor, torch.Tensor]
    """Sums of the epoch: losses times items, and items, each of the updates that were taken."""


class Blocks:
    """Captures blocks of steps, each length once, and repeats them.

    Args:
        attempt: takes a step, and returns (loss, found) or (loss, found, items) on the device.
        update: of that step.
        device: a CUDA device.
        stream: that captures.
        ahead: the rates to come, where a schedule steps with the optimizer and they are known.
        most: steps of a block, at most.
    """

    def __init__(
        self,
        attempt: Callable[[MicroBatches], torch.Tensor],
        update: Update,
        device: Cuda,
        stream: Any,
        ahead: RatesAhead | None,
        most: int,
    ) -> None:
        self._attempt, self._update, self._device = attempt, update, device
        self._stream, self._ahead = stream, ahead
        self._wish = update.target.graph
        # Half as many, and so on: most of what the end of an epoch leaves.
        self._sizes = [most >> halved for halved in range(most.bit_length())]
        self._graphs: dict[int, tuple[Graph, Gradients]] = {}
        self._order = torch.zeros(0, dtype=torch.int64)
        self._place = torch.zeros((), dtype=torch.int64, device=device.name)
        self._totals = torch.zeros(2, dtype=torch.float64, device=device.name)
        """Sums of the epoch, as `Block` has them."""
        self._given: Any = None
        """What the last block gave away of them, and the version of those tensors."""
        self._epoch: DeviceEpoch | None = None
        self._form: Any = None
        """What the graphs depend on, beside their length."""
        self._next = -1
        """The step of the epoch that the device would take next."""
        self.has_failed = False
        """True if a capture failed: no graph is replayed any more, see `CaptureFailed`."""

    def has(self, count: int) -> bool:
        """True if a block of that length is captured."""
        return count in self._graphs

    def length(self, most: int) -> int:
        """Return how many steps the next block takes if it may take `most`; 0 for none."""
        fitting = (size for size in self._sizes if _FEWEST <= size <= most)
        return 0 if self._wish.single is not None else next(fitting, 0)

    def take(
        self, epoch: DeviceEpoch, first: int, count: int, totals: Callable[[], tuple[Any, Any]]
    ) -> tuple[Block, Gradients] | None:
        """Queue a block of steps; None, with nothing done, if that is not possible.

        Args:
            epoch: whose whole steps they are.
            first: step of the epoch, from 0.
            count: as `length` gives it.
            totals: gives the epoch's sums so far, see `Block`.
        """
        if self._ahead is not None and not self._ahead.prepare(count):
            self._wish.single = self._ahead.problem
            return None
        self._place_order(epoch, first)
        if count not in self._graphs and not self._capture(epoch, count):
            return None
        graph, gradients = self._graphs[count]
        self._begin_totals(*totals())
        # Whatever fails from here on, the weights are changed.
        self._update.has_begun = True
        done = graph.replay()
        self._next = first + count
        self._wish.replays += count
        self._wish.launched_steps += count
        self._wish.launches += 1
        if self._ahead is not None:
            self._ahead.count(count)
        epoch.count_gathered(count)
        loss, found, *items = done[-1].unbind()
        losses, counted = self._totals.clone().unbind()
        self._given = losses, counted, losses._version
        block = Block(count, loss, TakenFlag(found), items[0] if items else None, (losses, counted))
        return block, gradients

    def _begin_totals(self, losses: Any, items: Any) -> None:
        """Have the sums so far where the next block adds to them."""
        given = self._given
        # Single steps between two blocks are added to what was given away.
        if given and losses is given[0] and items is given[1] and losses._version == given[2]:
            return
        for mine, given in zip(self._totals.unbind(), (losses, items), strict=True):
            mine.copy_(given) if isinstance(given, torch.Tensor) else mine.fill_(given)

    def forget(self) -> None:
        """Forget what was captured."""
        self._graphs.clear()
        self._form = self._epoch = None

    def _place_order(self, epoch: DeviceEpoch, first: int) -> None:
        """Have the epoch's order on the device, and the place of a step in it."""
        form = epoch.generation, len(epoch.order), epoch.batch, epoch.micro
        if form != self._form:
            self._graphs.clear()
            self._order = torch.empty_like(epoch.order, device=self._device.name)
            self._form, self._epoch = form, None
        if self._epoch is not epoch:
            self._order.copy_(self._device.send(epoch.order))
            self._epoch, self._next = epoch, -1
        if self._next != first:
            self._place.fill_(first * epoch.batch)

    def _capture(self, epoch: DeviceEpoch, count: int) -> bool:
        """Capture a block of that length; return whether it could be."""
        try:
            graph = self._device.capture(lambda: self._steps(epoch, count), self._stream)
        except RuntimeError as error:
            log.info("blocks of steps refused", exc_info=True)
            self._wish.single = f"the capture of {count} steps failed: {in_one_line(error)}"
            self.has_failed = True
            self._update.forget_unscaling()
        else:
            trained = trained_tensors(self._update.optimizer)
            self._graphs[count] = graph, [(each, each.grad) for each in trained]
            return True
        # The frames that failed have held memory, as their gradients do.
        self._update.zero()
        gc.collect()
        self._device.release_memory()
        return False

    def _steps(self, epoch: DeviceEpoch, count: int) -> torch.Tensor:
        """Queue steps; return what each decided, shape (count, 2) or (count, 3)."""
        within = torch.arange(count * epoch.batch, device=self._device.name)
        index = self._order.index_select(0, self._place + within)
        rows = torch.stack([self._attempt(micros) for micros in epoch.gather_steps(index)])
        self._place.add_(count * epoch.batch)
        losses, found, *items = rows.unbind(1)
        add_to(self._totals.unbind(), losses, found, items[0] if items else epoch.batch)
        return rows
