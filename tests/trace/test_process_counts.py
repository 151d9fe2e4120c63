"""What a process does beside its steps is counted between two of them; nothing is left behind."""

import gc
from collections.abc import Iterator

import pytest
import torch

from hotlap.trace.process_counts import ProcessCounter


@pytest.fixture(autouse=True)
def no_collection_of_its_own() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_collections_are_counted_between_begin_and_end() -> None:
    before = list(gc.callbacks)
    counter = ProcessCounter()
    gc.collect()
    counter.begin(10)
    counter.begin(10)
    held = [[number] for number in range(200_000)]
    for _ in range(3):
        gc.collect()
    counter.end(14)
    counter.end(20)
    gc.collect()
    counts = counter.counts()
    assert counts is not None and (counts.steps, counts.collections) == (4, 3), len(held)
    assert 0 < counts.collector_ms / 3 <= counts.longest_collection_ms < counts.collector_ms
    assert counts.peak_bytes > 2**20
    assert gc.callbacks == before


def test_of_no_step_nothing_is_told() -> None:
    counter = ProcessCounter()
    counter.end(8)
    assert counter.counts() is None
    counter.begin(10)
    counter.end(10)
    assert counter.counts() is None


def _plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def test_graphs_that_are_made_meanwhile_are_counted_and_those_before_are_not() -> None:
    torch._dynamo.reset()
    plus = torch.compile(_plus, backend="eager", dynamic=False)
    plus(torch.ones(2))
    counter = ProcessCounter()
    counter.begin(10)
    plus(torch.ones(2))
    plus(torch.ones(3))
    plus(torch.ones(4))
    torch.compile(_broken, backend="eager")(torch.ones(2))
    counter.end(20)
    counts = counter.counts()
    # One of each new shape, and two around the break.
    assert counts is not None and counts.graphs == 4
    assert counts.graph_breaks >= 1 and counts.compile_ms > 0
    idle = ProcessCounter()
    idle.begin(20)
    plus(torch.ones(4))
    idle.end(30)
    after = idle.counts()
    assert after is not None and (after.graphs, after.compile_ms) == (0, 0)


def test_memory_of_a_gpu_is_asked_for_where_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"num_alloc_retries": 2, "allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 9}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: dict(stats))
    counter = ProcessCounter()
    counter.begin(10)
    stats["num_alloc_retries"] = 5
    counter.end(12)
    counts = counter.counts()
    assert counts is not None and counts.device_retries == 3
    assert (counts.device_peak_bytes, counts.device_reserved_bytes) == (5, 9)
