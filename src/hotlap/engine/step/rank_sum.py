"""`RankSum`: the passes of one of several ranks, and the sum of their gradients.

A step is the same step for any number of ranks: each goes through its share of the samples, under
one normalizer, and what they found is added up before anything is decided.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.distributed.reduce import Reduce
from hotlap.engine.step.bucket_sums import BucketSums, set_gradient
from hotlap.engine.step.learned_buffers import LearnedBuffers
from hotlap.engine.step.passes import MicroBatches, Passes, trained_tensors
from hotlap.errors import RunError
from hotlap.feed.samples.order import derive_seed


class RankSum:
    """Makes the gradients of a step on every rank.

    A parameter may be used by some ranks only, a rank may have no sample of a short last step, and
    all ranks take a step again if one of them ran out of memory. Sums of gradients begin behind the
    last backward; with `reduce.overlaps` during it. See `BucketSums`.

    Args:
        passes: of this rank's share.
        optimizer: over the tensors that are trained.
        reduce: the ranks.
        seed: of what other ranks than the first draw in their forward.
    """

    def __init__(self, passes: Passes, optimizer: Any, reduce: Reduce, seed: int) -> None:
        self._passes, self._optimizer, self._reduce, self._seed = passes, optimizer, reduce, seed
        # What a technique does behind a backward may change gradients.
        self._in_backward = reduce.overlaps and not passes.target.after_backward
        self._sums: BucketSums | None = BucketSums(reduce, in_backward=self._in_backward)
        self.samples = 0
        """Of the next step, over all ranks; told by who gives the step."""
        self.number = 0
        """Of the next step, in the run."""
        self.vote: Callable[[], bool] = bool
        """Asked at every step whether this rank wants the run to stop."""
        self.is_stop_wanted = False
        """Any rank wanted to, at the newest step: the same on all of them."""
        self.is_repeated = False
        """All ranks take the newest step again, as one of them ran out of memory in its passes."""
        self.is_finite = True
        """The loss of the newest step is, over all ranks."""
        self._idle_loss = 0.0
        """Of this step's passes that add nothing; NaN if they have made the gradients so."""
        self._learned = LearnedBuffers(passes.model, reduce)

    def __call__(self, micros: MicroBatches) -> torch.Tensor:
        """Add the gradients of a step to `.grad`; return its loss over all ranks."""
        self._learned.take_first_ranks()
        self._seed_draws()
        self.is_repeated = False
        trained, sums = trained_tensors(self._optimizer), self._sums
        if sums is not None:
            sums.begin(trained)
        share, count, failed = self._go_through(micros)
        if sums is not None:
            sums.begin_rest()
        row = [
            (0.0 if share is None else float(share)) + self._idle_loss,
            0.0 if count is None else float(count),
            float(count is not None),
            float(share is not None and count is None),
            float(bool(failed)),
            float(self.vote()),
            float(sums is not None and sums.is_stale),
        ]
        total, counted, counts, means, failures, stops, stale, *used = self._reduce.sum_numbers(
            [*row, *self._find_used(trained)]
        )
        self.is_stop_wanted, self.is_finite = stops > 0, math.isfinite(total)
        if sums is not None:
            sums.wait()
        if failures:
            self.is_repeated = True
            raise torch.OutOfMemoryError(failed or "another rank ran out of memory")
        if counts and means:
            raise RunError(
                f"loss() returned (sum, count) on {counts:.0f} ranks, and a mean on {means:.0f}. "
                "Return (sum, count) for all micro-batches, or a mean for all."
            )
        self._add_up(trained, used, is_stale=stale > 0)
        dtype = torch.float32 if share is None else share.dtype
        loss = torch.tensor(total, dtype=dtype, device=trained[0].device)
        self._passes.items = None
        if not counts:
            return loss
        self._passes.items = counted
        self._passes.divide(counted)
        return loss / counted

    def _accumulate(self, micros: MicroBatches) -> tuple[Any, Any]:
        """Return what `Passes.accumulate` does, with sums that may begin in the last backward."""
        if self._sums is None or not self._in_backward:
            return self._passes.accumulate(micros, self.samples)
        share, count = None, None
        if len(micros) > 1:
            share, count = self._passes.accumulate(micros[:-1], self.samples)
        with self._sums.watching():
            more, counted = self._passes.accumulate(micros[-1:], self.samples)
        if share is None:
            return more, counted
        if (count is None) != (counted is None):
            raise RunError(
                "loss() returned (sum, count) for some micro-batches of a step, and a mean for "
                "the others. Return (sum, count) for all of them, or a mean for all."
            )
        return share + more, None if count is None else count + counted

    def _go_through(self, micros: MicroBatches) -> tuple[Any, Any, str]:
        """Return the share of the loss, its count, and how memory ran out if it did."""
        try:
            if micros:
                return *self._accumulate(micros), ""
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Not the error itself: it would hold what the attempt has allocated.
            return None, None, str(error) or "out of memory"
        return None, None, ""

    def _find_used(self, trained: list[torch.Tensor]) -> list[float]:
        """Return for each tensor whether this rank has found a gradient for it."""
        return [float(tensor.grad is not None) for tensor in trained]

    def _add_up(self, trained: list[torch.Tensor], used: list[float], *, is_stale: bool) -> None:
        """Give the tensors the gradients of all ranks.

        Args:
            trained: what is trained.
            used: of each, how many ranks have found a gradient for it.
            is_stale: what has been added up is of no use on one rank at least.
        """
        summed = [tensor for tensor, ranks in zip(trained, used, strict=True) if ranks]
        if self._sums is not None and not is_stale:
            summed = self._sums.write(summed)
        for tensor, total in zip(summed, self._reduce.sum_tensors(_gradients(summed)), strict=True):
            set_gradient(tensor, total)

    def _seed_draws(self) -> None:
        """Let ranks draw other numbers than the first one, the same in a run that was resumed."""
        if self._reduce.rank == 0:
            return
        seed = derive_seed(self._seed, self.number, self._reduce.rank)
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            # Of all devices: this rank's need not be the current one.
            torch.cuda.manual_seed_all(seed)


def _gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of tensors, zeros where this rank has none."""
    found = []
    for tensor in tensors:
        if tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor)
        found.append(tensor.grad)
    return found
