"""`RankSum`: the passes of one of several ranks, and the sum of their gradients.

A step is the same step for any number of ranks: each goes through its share of the samples, under
one normalizer, and what they found is added up before anything is decided.
"""

from collections.abc import Callable
from typing import Any

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.distributed.reduce import Reduce
from hotlap.engine.step.passes import MicroBatches, Passes, trained_tensors
from hotlap.errors import RunError
from hotlap.feed.samples.order import derive_seed


class RankSum:
    """Makes the gradients of a step on every rank.

    Gradients are added up behind the last backward, not during it. So a parameter may be used by
    some ranks only, a rank may have no sample of a short last step, and all ranks take a step again
    if one of them ran out of memory.

    Args:
        passes: of this rank's share.
        optimizer: over the tensors that are trained.
        reduce: the ranks.
        seed: of what other ranks than the first draw in their forward.
    """

    def __init__(self, passes: Passes, optimizer: Any, reduce: Reduce, seed: int) -> None:
        self._passes, self._optimizer, self._reduce, self._seed = passes, optimizer, reduce, seed
        self.samples = 0
        """Of the next step, over all ranks; told by who gives the step."""
        self.number = 0
        """Of the next step, in the run."""
        self.vote: Callable[[], bool] = bool
        """Asked at every step whether this rank wants the run to stop."""
        self.is_stop_wanted = False
        """Any rank wanted to, at the newest step: the same on all of them."""

    def __call__(self, micros: MicroBatches) -> torch.Tensor:
        """Add the gradients of a step to `.grad`; return its loss over all ranks."""
        self._seed_draws()
        share, count, failed = self._go_through(micros)
        trained = trained_tensors(self._optimizer)
        row = [
            0.0 if share is None else float(share),
            0.0 if count is None else float(count),
            float(count is not None),
            float(share is not None and count is None),
            float(bool(failed)),
            float(self.vote()),
        ]
        total, counted, counts, means, failures, stops, *used = self._reduce.sum_numbers(
            [*row, *self._find_used(trained)]
        )
        self.is_stop_wanted = stops > 0
        if failures:
            raise torch.OutOfMemoryError(failed or "another rank ran out of memory")
        if counts and means:
            raise RunError(
                f"loss() returned (sum, count) on {counts:.0f} ranks and a mean on {means:.0f}. "
                "Return the same form for all micro-batches."
            )
        self._add_up(trained, used)
        dtype = torch.float32 if share is None else share.dtype
        loss = torch.tensor(total, dtype=dtype, device=trained[0].device)
        self._passes.items = None
        if not counts:
            return loss
        self._passes.items = counted
        self._passes.divide(counted)
        return loss / counted

    def _go_through(self, micros: MicroBatches) -> tuple[Any, Any, str]:
        """Return the share of the loss, its count, and how memory ran out if it did."""
        try:
            if micros:
                return *self._passes.accumulate(micros, self.samples), ""
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Not the error itself: it would hold what the attempt has allocated.
            return None, None, str(error) or "out of memory"
        return None, None, ""

    def _find_used(self, trained: list[torch.Tensor]) -> list[float]:
        """Return for each tensor whether this rank has found a gradient for it."""
        return [float(tensor.grad is not None) for tensor in trained]

    def _add_up(self, trained: list[torch.Tensor], used: list[float]) -> None:
        """Add up the gradients of all ranks.

        Args:
            trained: what is trained.
            used: of each, how many ranks have found a gradient for it.
        """
        self._reduce.sum_tensors(_gradients(trained, used))

    def _seed_draws(self) -> None:
        """Let ranks draw other numbers than the first one, the same in a run that was resumed."""
        if self._reduce.rank == 0:
            return
        seed = derive_seed(self._seed, self.number, self._reduce.rank)
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)


def _gradients(trained: list[torch.Tensor], used: list[float]) -> list[torch.Tensor]:
    """Return the gradients that any rank has, zeros where this one has none."""
    found = []
    for tensor, ranks in zip(trained, used, strict=True):
        if ranks:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            found.append(tensor.grad)
    return found
