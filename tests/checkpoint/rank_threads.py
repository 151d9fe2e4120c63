"""Ranks that are threads of one process: what they tell each other is what processes would."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotlap.checkpoint.shards import Piece
from hotlap.distributed.ranks import Ranks
from hotlap.distributed.reduce import Reduce
from tests.checkpoint.pieces import cut

_PATIENCE_S = 20.0


class ThreadReduce(Reduce):
    """Stands in for the `Reduce` of one rank.

    Args:
        ranks: which rank it is.
        said: one place for each rank, the same list for all of them.
        barrier: that all of them wait at.
    """

    def __init__(self, ranks: Ranks, said: list[str], barrier: threading.Barrier) -> None:
        super().__init__(ranks)
        self._said, self._barrier = said, barrier

    def gather(self, value: Any) -> list[Any]:
        self._said[self.rank] = json.dumps(value)
        self._barrier.wait()
        told = [json.loads(text) for text in self._said]
        self._barrier.wait()
        return told

    def send_tensors(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int]) -> None:
        told = self.gather([each.tolist() for each in tensors])
        for number, (tensor, owner) in enumerate(zip(tensors, ranks, strict=True)):
            tensor.detach().copy_(torch.tensor(told[owner][number]))

    def copy_tensors(self, tensors: Sequence[torch.Tensor], rank: int = 0) -> None:
        self.send_tensors(tensors, [rank] * len(tensors))

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        return [sum(column) for column in zip(*self.gather(list(numbers)), strict=True)]

    def most(self, numbers: Sequence[float]) -> list[float]:
        return [max(column) for column in zip(*self.gather(list(numbers)), strict=True)]


def on_ranks(world: int, work: Callable[[Reduce], Any]) -> list[Any]:
    """Return what the work of each rank returned or raised, by rank."""
    found: list[Any] = [None] * world
    said, barrier = [""] * world, threading.Barrier(world, timeout=_PATIENCE_S)

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadReduce(Ranks(rank, world), said, barrier))
        except Exception as error:
            found[rank] = error
            # Those that wait for it would wait for ever.
            if isinstance(error, AssertionError | threading.BrokenBarrierError):
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def parts_of(tensors: dict[str, dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """Return what one rank holds of models and optimizers that are cut along their first dimension.

    Of those without dimensions, one rank holds each; random states are whole on all of them.
    """
    found: dict[str, Any] = {}
    for group, names in tensors.items():
        held = found.setdefault(group, {})
        for number, (name, tensor) in enumerate(sorted(names.items())):
            if group not in ("model", "optimizer"):
                held[name] = tensor
            elif tensor.dim():
                held[name] = _share(tensor, rank, world)
            elif number % world == rank:
                held[name] = Piece(tensor, (), ())
    return found


def _share(tensor: torch.Tensor, rank: int, world: int) -> Piece:
    rows = -(-len(tensor) // world)
    begin = min(rank * rows, len(tensor))
    count = min(rows, len(tensor) - begin)
    rest = tensor.dim() - 1
    return cut(tensor, (count, *tensor.shape[1:]), (begin, *(0 for _ in range(rest))))
