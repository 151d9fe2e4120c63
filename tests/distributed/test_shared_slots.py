"""Sums through memory that ranks share: in the order of the ranks, and never half written."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hotlap.distributed import shared_slots
from hotlap.distributed.shared_slots import SharedSlots, share_memory

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="memory without a name is had on Linux alone"
)


class Threads:
    """Stands for one of several ranks that are threads."""

    def __init__(self, rank: int, world: int, said: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world, self.meetings = rank, world, 0
        self._said, self._barrier = said, barrier

    def gather(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._barrier.wait()
        found = list(self._said)
        self._barrier.wait()
        return found

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        self.meetings += 1
        return [sum(each) for each in zip(*self.gather(list(numbers)), strict=True)]

    def wait(self) -> None:
        self.sum_numbers([0.0])


def on_ranks(
    world: int, work: Callable[[Threads], Any], kind: type[Threads] = Threads
) -> list[Any]:
    said: list[Any] = [None] * world
    found: list[Any] = [None] * world
    barrier = threading.Barrier(world, timeout=20)

    def run(rank: int) -> None:
        found[rank] = work(kind(rank, world, said, barrier))

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def own(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * number + rank)
    return [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_are_those_of_one_process_that_adds_up_in_the_order_of_the_ranks(world: int) -> None:
    def work(reduce: Threads) -> list[torch.Tensor]:
        slots = share_memory(reduce, 17, torch.float32)
        assert slots is not None
        found = []
        for number in range(6):
            slots.write(own(reduce.rank, number))
            if number % 2:
                reduce.wait()
            slots.add_up(total := torch.empty(17))
            found.append(total)
        return found

    for found in on_ranks(world, work):
        for number, total in enumerate(found):
            expected = torch.zeros(17)
            for rank in range(world):
                expected += torch.cat([each.reshape(-1) for each in own(rank, number)])
            assert torch.equal(total, expected)


class Alone:
    """Stands for the first of two ranks; the other one does what it likes meanwhile."""

    rank, world, meetings = 0, 2, 0

    def __init__(self) -> None:
        self.waits = 0

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        self.meetings += 1
        return list(numbers)

    def wait(self) -> None:
        self.waits += 1
        self.meetings += 1


def test_ranks_wait_for_each_other_where_nothing_else_made_them() -> None:
    reduce = Alone()
    slots = SharedSlots(reduce, [torch.zeros(2, 3), torch.zeros(2, 3)])
    total, tensors = torch.empty(3), [torch.ones(3)]
    slots.write(tensors)
    # The other rank has not written.
    slots.add_up(total)
    assert reduce.waits == 1
    slots.write(tensors)
    reduce.sum_numbers([])
    slots.add_up(total)
    assert reduce.waits == 1
    # The slot after next, two sums without a meeting between the reading and the writing.
    slots.write(tensors)
    slots.write(tensors)
    assert reduce.waits == 2


def test_all_do_without_where_one_of_them_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(reduce: Threads) -> Any:
        return share_memory(reduce, 17 if reduce.rank else 2**60, torch.float32)

    assert on_ranks(2, work) == [None, None]
    monkeypatch.setattr(shared_slots, "available_bytes", lambda: 100)
    assert on_ranks(2, lambda reduce: share_memory(reduce, 17, torch.float32)) == [None, None]


@pytest.mark.parametrize("other", [{"inode": 1}, {"machine": "another"}, {"path": "/proc/1/none"}])
def test_memory_that_is_not_the_other_ranks_is_not_taken(other: dict[str, Any]) -> None:
    class Elsewhere(Threads):
        def gather(self, value: Any) -> list[Any]:
            found = super().gather(value)
            # As where a process number means another process, which has memory of this size.
            return [{**each, **other} if isinstance(each, dict) else each for each in found]

    assert None not in on_ranks(2, share)
    assert on_ranks(2, share, Elsewhere) == [None, None]


def share(reduce: Threads) -> SharedSlots | None:
    return share_memory(reduce, 17, torch.float32)
