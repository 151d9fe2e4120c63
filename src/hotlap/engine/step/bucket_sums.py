"""`BucketSums`: sums gradients over ranks in buckets, during the last backward pass or after it.

They begin while the last backward pass still runs, or behind it; then the ranks agree on whether
the step went well while the sums are under way. Gradients are summed in buckets, in the order in
which a backward pass makes them. Every rank sums every bucket in the same order in every step,
whatever happens to it: for gradients that it has not, as it did not use a weight or ran out of
memory, it adds zeros. So no rank waits for a sum that another one does not take part in. Sums are
used only if the ranks agree that the step went well.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.distributed.reduce import PendingSum, Reduce, by_format

BUCKET_BYTES = 25 * 2**20
"""Of gradients that are summed at once, about."""
FIRST_BUCKET_BYTES = 2**20
"""The first one is small: its sum begins sooner."""


@dataclass
class _Bucket:
    tensors: list[torch.Tensor]
    missing: int
    """Gradients that the backward pass has still to make."""
    pending: PendingSum | None = None


class BucketSums:
    """Sums the gradients of one step after the other.

    Args:
        reduce: the ranks.
        in_backward: sums begin during the last backward pass; else there is one bucket of each
            dtype and device, as nothing is gained by several.
    """

    def __init__(self, reduce: Reduce, *, in_backward: bool) -> None:
        self._reduce, self._in_backward = reduce, in_backward
        self._buckets: list[_Bucket] = []
        self._next = 0
        """The first bucket whose sum has not begun."""
        self._made: set[int] = set()
        self.is_stale = False
        """A gradient was added to after its sum had begun: the sums of this step are of no use."""

    def begin(self, trained: Sequence[torch.Tensor]) -> None:
        """Begin a step, of which nothing has been summed yet."""
        self._next, self._made, self.is_stale = 0, set(), False
        # Those that need no gradient have none on any rank.
        needed = [tensor for tensor in trained if tensor.requires_grad]
        groups = _in_groups(needed) if self._in_backward else by_format(needed)
        self._buckets = [_Bucket(group, len(group)) for group in groups]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While entered, begin the sum of a bucket as soon as a backward has made its gradients.

        It is entered for the last backward of a step: before, gradients are not complete.
        """
        handles = [
            tensor.register_post_accumulate_grad_hook(self._hook_of(bucket))
            for bucket in self._buckets
            for tensor in bucket.tensors
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def begin_rest(self) -> None:
        """Begin the sums that have not begun, in their order."""
        for bucket in self._buckets[self._next :]:
            self._begin(bucket)

    def wait(self) -> None:
        """Wait for all sums."""
        for bucket in self._buckets:
            assert bucket.pending is not None
            bucket.pending.wait()

    def write(self, used: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Write the sums to the gradients of the tensors that any rank used.

        Returns:
            Those of them that are in no bucket.
        """
        wanted = {id(tensor) for tensor in used}
        for bucket in self._buckets:
            assert bucket.pending is not None
            parts = bucket.pending.parts()
            pairs = [
                (tensor, part)
                for tensor, part in zip(bucket.tensors, parts, strict=True)
                if id(tensor) in wanted
            ]
            wanted -= {id(tensor) for tensor, _ in pairs}
            for tensor, part in pairs:
                set_gradient(tensor, part)
            bucket.pending = None
        return [tensor for tensor in used if id(tensor) in wanted]

    def _hook_of(self, bucket: _Bucket) -> Any:
        def made(tensor: torch.Tensor) -> None:
            if id(tensor) in self._made:
                # A graph within the graph, as of recomputed layers, may use a weight once more.
                self.is_stale = self.is_stale or bucket.pending is not None
                return
            self._made.add(id(tensor))
            bucket.missing -= 1
            while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
                self._begin(self._buckets[self._next])

        return made

    def _begin(self, bucket: _Bucket) -> None:
        gradients = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for tensor in bucket.tensors
        ]
        bucket.pending = self._reduce.begin_sum(gradients, self._next)
        # Not before: a sum for which memory ran out is begun again, as other ranks take part in it.
        self._next += 1


def set_gradient(tensor: torch.Tensor, total: torch.Tensor) -> None:
    """Make a sum over ranks the gradient of a tensor, without a copy where it is laid out alike.

    Args:
        tensor: is trained.
        total: of its shape, contiguous, and not changed before the gradient is dropped.
    """
    if tensor.stride() == total.stride():
        tensor.grad = total
        return
    if tensor.grad is None:
        tensor.grad = torch.empty_like(tensor)
    tensor.grad.copy_(total)


def _in_groups(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Give the tensors from the last to the first, as a backward pass comes to them; those of one
    group have one dtype and device. Nothing but the model decides it, so that a resumed run sums in
    the same order."""
    group: list[torch.Tensor] = []
    limit, size = FIRST_BUCKET_BYTES, 0
    for tensor in reversed(tensors):
        form = (tensor.dtype, tensor.device)
        if group and (size >= limit or form != (group[0].dtype, group[0].device)):
            yield group
            group, limit, size = [], BUCKET_BYTES, 0
        group.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if group:
        yield group
