"""The allocator of CUDA memory is read where a model is on it, and never before or in a capture."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap import compat
from hotlap.attach import script_events
from hotlap.attach.listener import Listener, State
from hotlap.errors import RunError
from hotlap.trace.device_memory import DeviceMemory
from hotlap.trace.memory_recorder import MemoryRecorder
from hotlap.trace.memory_schema import DevicePeak

CUDA = torch.device("cuda", 0)


class Allocator:
    """Stands in for what torch says of CUDA memory; notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allocs = 0
        self.is_capturing = False

    def stats(self, device: torch.device) -> dict[str, int]:
        assert device == CUDA
        self.asked.append("stats")
        self.allocs += 2
        return {
            "num_device_alloc": self.allocs,
            "num_device_free": 1,
            "num_alloc_retries": 0,
            "allocated_bytes.all.current": 100,
            "reserved_bytes.all.current": 200,
            "inactive_split_bytes.all.current": 50,
        }

    def record(self, enabled: str | None, **options: Any) -> None:
        self.asked.append(f"record {enabled}")
        assert enabled is None or options["max_entries"] < 10**6

    def dump(self, path: str) -> None:
        Path(path).write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    known = {"_record_memory_history": made.record, "_dump_snapshot": made.dump}
    monkeypatch.setattr(compat, "find_optional", known.get)
    for name, function in {
        "is_current_stream_capturing": lambda: made.is_capturing,
        "memory_stats": made.stats,
        "reset_peak_memory_stats": lambda _: made.asked.append("reset"),
        "max_memory_allocated": lambda _: 1000,
        "max_memory_reserved": lambda _: 3000,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    return made


def model_on(device: torch.device) -> Any:
    return SimpleNamespace(parameters=lambda: [SimpleNamespace(device=device)], buffers=list)


def test_a_device_is_followed_from_its_first_model_on(allocator: Allocator) -> None:
    memory = DeviceMemory()
    memory.begin([model_on(CUDA)])
    memory.begin([model_on(CUDA)])
    memory.step_ends(1)
    memory.step_ends(2)
    assert allocator.asked == ["reset", "stats", "stats"]
    assert [(row.step, row.device_allocs) for row in memory.steps] == [(1, 2), (2, 4)]
    assert memory.steps[0].inactive_split_bytes == 50
    assert memory.peak() == DevicePeak(1000, 3000)


def test_nothing_is_asked_where_no_model_is_on_cuda(allocator: Allocator, tmp_path: Path) -> None:
    memory = DeviceMemory(keeps_history=True)
    memory.begin([])
    memory.begin([model_on(torch.device("cpu")), model_on(torch.device("meta"))])
    memory.step_ends(1)
    assert (memory.peak(), memory.steps, allocator.asked) == (None, [], [])
    with pytest.raises(RunError, match="not on a CUDA device"):
        memory.write_snapshot(tmp_path / "a.pickle")
    assert not memory.has_snapshot


def test_nothing_is_asked_while_a_graph_is_captured(allocator: Allocator) -> None:
    memory = DeviceMemory(keeps_history=True)
    allocator.is_capturing = True
    memory.begin([model_on(CUDA)])
    memory.step_ends(1)
    assert allocator.asked == []
    allocator.is_capturing = False
    memory.begin([model_on(CUDA)])
    allocator.is_capturing = True
    memory.step_ends(2)
    assert allocator.asked == ["reset", "record all"]


def test_the_history_is_recorded_where_it_is_wanted_and_then_no_more(
    allocator: Allocator, tmp_path: Path
) -> None:
    memory = DeviceMemory(keeps_history=True)
    memory.begin([model_on(CUDA)])
    assert allocator.asked == ["reset", "record all"]
    memory.write_snapshot(tmp_path / "a.pickle")
    assert allocator.asked[2:] == ["record None"] and memory.has_snapshot
    # What PyTorch's viewer reads.
    assert {"segments", "device_traces"} <= pickle.loads(
        (tmp_path / "a.pickle").read_bytes()
    ).keys()


def test_a_torch_without_a_history_says_so(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compat, "find_optional", lambda _: None)
    memory = DeviceMemory(keeps_history=True)
    memory.begin([model_on(CUDA)])
    with pytest.raises(RunError, match="does not record the history"):
        memory.write_snapshot(tmp_path / "a.pickle")


def test_the_names_that_a_history_needs_are_in_this_torch() -> None:
    for name in ("_record_memory_history", "_dump_snapshot"):
        assert callable(compat.find_optional(name))


def test_a_recorder_follows_the_device_of_its_models(allocator: Allocator) -> None:
    recorder = MemoryRecorder(list, lambda: [model_on(CUDA)])
    recorder.cache_emptied(None)
    recorder.begin()
    try:
        for _ in range(3):
            recorder.forward_begins(None)
            recorder.backward_begins()
            recorder.backward_ends()
            recorder.step_ends(None)
            recorder.cache_emptied(None)
    finally:
        trace = recorder.trace("cuda", None)
    assert [row.step for row in trace.allocator] == [1, 2, 3]
    # What comes behind a step belongs to the next one; what came before the window is not seen.
    assert [call.step for call in trace.cache_calls] == [2, 3, 4]
    assert trace.device_peak == DevicePeak(1000, 3000)


class Heard(Listener):
    wants_events = True

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event_happens(self, kind: str) -> None:
        self.kinds.append(kind)


@pytest.fixture
def heard() -> Iterator[Heard]:
    State.listener = Heard()
    yield State.listener
    State.listener = None


@pytest.mark.parametrize("copied", [True, False])
def test_a_call_that_empties_the_cache_is_told(
    copied: bool, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[int] = []
    # What `from torch.cuda import empty_cache` has copied calls it, too.
    empty_cache = torch.cuda.empty_cache if copied else torch.cuda.memory.empty_cache
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: emptied.append(1), raising=False)
    script_events._tell_emptying("_cuda_emptyCache")
    empty_cache()
    assert (heard.kinds, emptied) == (["empty_cache"], [1])
    State.listener = None
    empty_cache()
    assert (heard.kinds, emptied) == (["empty_cache"], [1, 1])
