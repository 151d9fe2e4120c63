"""`ShardedSum`: the passes of one of several ranks that share the parameters of the model.

Parameters are gathered inside the forward pass and gradients are added up inside the backward pass,
so every rank goes through the model as often as the others.
"""

from collections.abc import Callable
from typing import Any

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.distributed.reduce import Reduce
from hotlap.engine.step.passes import MicroBatches, Passes
from hotlap.engine.step.rank_sum import RankSum
from hotlap.errors import RunError, UsageError


class ShardedSum(RankSum):
    """Makes the gradients of a step, each rank those of its share of the parameters.

    Args:
        passes: of this rank's samples.
        optimizer: over the shares.
        reduce: the ranks.
        seed: see `RankSum`.
        sharding: the `hotlap.distributed.sharded_model.ShardedModel`.
        spare: reads a batch for a rank that has no sample of a step; None if it cannot.
    """

    def __init__(
        self,
        passes: Passes,
        optimizer: Any,
        reduce: Reduce,
        seed: int,
        sharding: Any,
        spare: Callable[[], Any],
    ) -> None:
        super().__init__(passes, optimizer, reduce, seed)
        # Gradients are summed during the backward pass as it is.
        self._sums = None
        self._sharding, self._spare = sharding, spare
        self._batch: Any = None
        """The newest batch of a step with a finite loss: gone through once more in a step of which
        this rank has no sample."""
        named = passes.model.named_parameters()
        self._names = {id(parameter): name for name, parameter in named}
        # Parts of a batch cannot be compared: only whole steps have gradients.
        passes.is_checked = True

    def __call__(self, micros: MicroBatches) -> torch.Tensor:
        loss = super().__call__(micros)
        # Zero times what is not finite is NaN: such a batch would spoil the gradients of others.
        if micros and (self.is_finite or self._batch is None):
            self._batch = micros[-1][1]
        return loss

    def _go_through(self, micros: MicroBatches) -> tuple[Any, Any, str]:
        self._sharding.begin_step()
        self._idle_loss = 0.0
        passes = self._agree(len(micros))
        share: Any = None
        count: Any = None
        try:
            for number in range(passes):
                self._sharding.begin_pass(is_last=number == passes - 1)
                if number >= len(micros):
                    batch = micros[-1][1] if micros else self._batch
                    # NaN leaves the step out on all ranks, as their sums of gradients are NaN.
                    self._idle_loss += float(self._passes.go_idle(batch))
                    continue
                part, items = self._passes.accumulate(micros[number : number + 1], self.samples)
                if number and (count is None) != (items is None):
                    raise RunError(
                        "loss() returned (sum, count) for some micro-batches of a step, and a "
                        "mean for the others. Return (sum, count) for all of them, or a mean for "
                        "all."
                    )
                share = part if share is None else share + part
                count = items if count is None else count + items
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            samples = max((samples for samples, _ in micros), default=2)
            raise RunError(
                f"step {self.number} ran out of memory on rank {self._reduce.rank} in "
                f"micro-batches of {samples} samples ({error}), and with `sharding` the step "
                "cannot be repeated in smaller ones. Resume from the last checkpoint with more "
                "devices, or with smaller micro-batches, as in --resume auto --micro-batch "
                f"{-(-samples // 2)}."
            ) from error
        self._sharding.updates += 1
        return share, count, ""

    def _agree(self, own: int) -> int:
        """Return the passes of this step: as many on every rank."""
        if not own and self._batch is None:
            self._batch = self._spare()
        most, lacking = self._reduce.most([float(own), float(not own and self._batch is None)])
        if lacking:
            raise UsageError(
                f"step {self.number} has {self.samples} samples for {self._reduce.world} ranks, "
                "and at least one rank got none. With `sharding`, each rank needs a sample in the "
                f"first step that it takes. Use at most {self.samples} devices; or, if only the "
                "last step of an epoch is that short, start a new run with drop_last=True in the "
                "task."
            )
        return int(most)

    def _find_used(self, trained: list[torch.Tensor]) -> list[float]:
        used = self._sharding.used
        return [float(self._names.get(id(tensor)) in used) for tensor in trained]

    def _add_up(self, trained: list[torch.Tensor], used: list[float], *, is_stale: bool) -> None:
        del is_stale
        # Added up they are. What no rank has used is not updated, as in one process.
        for tensor, ranks in zip(trained, used, strict=True):
            if not ranks:
                tensor.grad = None
