"""Traces of torch.profiler, read: sums as torch's own tables have them, phases, idle, damage."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from hotlap.errors import MissingFile, UsageError
from hotlap.report import profile as page
from hotlap.trace.chrome.nesting import nest
from hotlap.trace.chrome.reading import OPERATOR, is_trace_file, read_trace
from hotlap.trace.chrome.summary import copy_direction, summarize, totals
from hotlap.trace.schema import PHASES
from tests.report.shown import words
from tests.trace.profiled import NAP_S, STEPS, network, record


def test_sums_by_name_are_those_of_torchs_own_table(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    theirs = record(path, network()).key_averages()
    ours = totals(nest(read_trace(path)))
    assert {row.key for row in theirs} == set(ours)
    for row in theirs:
        count, total, own = ours[row.key]
        assert count == row.count, row.key
        assert total / 1e3 == pytest.approx(row.cpu_time_total, rel=0.01, abs=0.01), row.key
        assert own / 1e3 == pytest.approx(row.self_cpu_time_total, rel=0.01, abs=0.01), row.key
    whole = sum(own for _, _, own in ours.values())
    assert whole / 1e3 == pytest.approx(theirs.total_average().self_cpu_time_total, rel=0.01)


@pytest.mark.parametrize("marks_steps", [True, False])
def test_a_foreign_trace_has_phases_that_add_up_and_its_longest_gap(
    marks_steps: bool, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    record(path, network(), marks_steps=marks_steps)
    found = summarize(read_trace(path))
    # Without marks the steps are those of the optimizer, the one before the window too.
    assert found.steps == (STEPS if marks_steps else STEPS + 1)
    assert list(found.phases) == list(PHASES)
    assert sum(found.phases.values()) == pytest.approx(found.window_ms)
    assert all(found.phases[phase] > 0 for phase in PHASES[:-1])
    assert found.phases["data"] > NAP_S * 1e3
    assert found.phases["forward"] < found.window_ms - NAP_S * 1e3
    gap = found.idle.gaps[0]
    assert gap.ms > 0.9 * NAP_S * 1e3
    assert gap.phase == "data"
    assert gap.stood[0].startswith("enumerate(DataLoader)#")
    assert found.idle.of == "training thread"
    assert found.idle.ms > gap.ms
    text = words(lambda summary, console: page.page(summary, path, console), found)
    assert f"{STEPS if marks_steps else STEPS + 1} steps" in text
    assert "enumerate(DataLoader)" in text


def test_python_functions_say_what_stood_in_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    record(path, network(), with_stack=True)
    gap = summarize(read_trace(path)).idle.gaps[0]
    assert "sleep" in gap.stood[0]
    assert any("profiled.py" in name for name in gap.stood)


def test_a_region_has_its_forward_and_its_backward(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "trace.json"

    class Named(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with record_function("first"):
                between = model[0](inputs)
            with record_function("rest"), record_function("nothing"):
                pass
            with record_function("rest"):
                return model[2](model[1](between))

    named = Named()
    named.inner = model
    record(path, named)
    found = summarize(read_trace(path))
    regions = {region.name: region for region in found.regions}
    assert list(regions) == ["first", "rest", "nothing"]
    assert (regions["first"].count, regions["rest"].count) == (STEPS, 2 * STEPS)
    assert regions["nothing"].backward_ms == 0 < regions["first"].backward_ms
    both = sum(region.backward_ms for region in found.regions)
    # The loss has no region, and accumulating gradients belongs to no operator of the forward.
    assert 0.3 * found.phases["backward"] < both < found.phases["backward"]
    (relu,) = (row for row in found.operators if row.name == "aten::clamp_min")
    assert relu.region == "rest"


def test_a_backward_belongs_to_the_operator_that_made_its_node(tmp_path: Path) -> None:
    number = {"Sequence number": 7}
    events = [
        span("first", "user_annotation", 0, 10),
        # It makes no node of autograd's: the next one gets the number that it was shown.
        span("aten::detach", "cpu_op", 2, 1, **number),
        span("second", "user_annotation", 10, 10),
        span("aten::linear", "cpu_op", 11, 6, **number),
        span("aten::addmm", "cpu_op", 12, 4, **number),
        span("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", 30, 3, **number),
        # Made in the backward itself, for a gradient of the gradient.
        span("aten::mm", "cpu_op", 31, 1, **number),
    ]
    found = summarize(read_trace(written(tmp_path / "trace.json", events)))
    assert [(each.name, each.forward_ms, each.backward_ms) for each in found.regions] == [
        ("first", pytest.approx(10), 0),
        ("second", pytest.approx(10), pytest.approx(3)),
    ]


def test_what_operators_allocate_is_told_where_memory_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    record(path, network(), profile_memory=True)
    found = summarize(read_trace(path))
    rows = {row.name: row for row in found.operators}
    # Four linear layers of a batch of eight.
    assert rows["aten::addmm"].bytes == STEPS * 8 * (64 + 64 + 64 + 4) * 4
    assert found.peak_bytes["cpu"] > rows["aten::addmm"].bytes / STEPS
    assert "Most memory held on cpu" in words(lambda s, c: page.page(s, path, c), found)


def test_a_compressed_trace_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    record(path, network())
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert summarize(read_trace(packed)) == summarize(read_trace(path))
    nameless = tmp_path / "trace"
    nameless.write_bytes(packed.read_bytes())
    assert is_trace_file(str(nameless))


def span(name: str, category: str, start: float, ms: float, tid: Any = 1, **more: Any) -> Any:
    where = {"pid": more.pop("pid", 1), "tid": tid}
    times = {"ts": start * 1e3, "dur": ms * 1e3}
    return {"ph": "X", "name": name, "cat": category, "args": more, **where, **times}


def of_a_device() -> list[Any]:
    """Return one step on a GPU that waits for its data, and is waited for at `item()`."""
    ids = [{"External id": number} for number in range(5)]
    return [
        span("ProfilerStep#3", "user_annotation", 0, 100),
        span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cpu_op", 0, 40),
        span("aten::to", "cpu_op", 40, 2, **ids[0]),
        span("cudaMemcpyAsync", "cuda_runtime", 40.5, 1, **ids[0]),
        span("aten::mm", "cpu_op", 44, 2, **ids[1]),
        span("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 50, 6, tid=2, **ids[2]),
        span("aten::mm", "cpu_op", 51, 2, tid=2, **ids[3]),
        span("Optimizer.step#SGD.step", "user_annotation", 60, 5),
        span("aten::item", "cpu_op", 66, 30, **ids[4]),
        span("cudaStreamSynchronize", "cuda_runtime", 66.5, 29, **ids[4]),
        # The profiler itself, at its end.
        span("cudaDeviceSynchronize", "cuda_runtime", 100.5, 3),
        span("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 42, 3, 7, bytes=4096, **ids[0]),
        span("gemm", "kernel", 46, 20, 7, pid=0, **ids[1]),
        span("gemm", "kernel", 70, 25, 7, pid=0, **ids[3]),
        span("add", "kernel", 102, 1, 7, pid=0),
    ]


def written(path: Path, events: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_device_is_idle_between_its_kernels_and_copies(tmp_path: Path) -> None:
    found = summarize(read_trace(written(tmp_path / "trace.json", of_a_device())))
    assert found.window_ms == pytest.approx(103)
    assert found.idle.of == "device"
    assert found.idle.ms == pytest.approx(42 + 1 + 4 + 7)
    first = found.idle.gaps[0]
    assert (first.phase, first.ms, first.before) == ("data", pytest.approx(42), "")
    assert first.stood[0].startswith("enumerate(DataLoader)#")
    assert first.after.startswith("Memcpy HtoD")
    waiting = next(gap for gap in found.idle.gaps if gap.at_ms == pytest.approx(66))
    assert waiting.stood == ("cudaStreamSynchronize", "aten::item")
    expected = {"data": 40, "forward": 10, "backward": 6, "optimizer": 5, "other": 42}
    assert found.phases == pytest.approx(expected)


def test_what_other_threads_wait_for_stands_in_no_gap(tmp_path: Path) -> None:
    events = [
        # As an older torch calls it.
        span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "Operator", 0, 50),
        span("queue.py(171): get", "python_function", 5, 40, tid=3),
        span("queue.py(154): get", "python_function", 1, 48),
        span("aten::mm", "Operator", 60, 5),
    ]
    found = summarize(read_trace(written(tmp_path / "trace.json", events)))
    (gap,) = found.idle.gaps
    assert gap.stood == ("queue.py(154): get", events[0]["name"])
    assert (gap.phase, gap.ms, found.idle.of) == ("data", pytest.approx(60), "training thread")


def test_kernels_copies_and_synchronizations_have_the_operator_that_asked(tmp_path: Path) -> None:
    found = summarize(read_trace(written(tmp_path / "trace.json", of_a_device())))
    assert [(row.name, row.count, row.operator) for row in found.kernels] == [
        ("gemm", 2, "aten::mm"),
        ("add", 1, ""),
    ]
    (copy,) = found.copies
    assert (copy.total_ms, copy.bytes, copy.operator) == (pytest.approx(3), 4096, "aten::to")
    (waiting,) = found.synchronizations
    assert (waiting.name, waiting.operator) == ("cudaStreamSynchronize", "aten::item")
    placed = found.with_lines({("", "aten::item"): "train.py:9", ("x", "aten::mm"): "train.py:1"})
    assert placed.synchronizations[0].where == "train.py:9"
    assert placed.kernels[0].where == ""
    text = words(lambda s, c: page.page(s, tmp_path, c), placed)
    assert "HtoD pageable" in text
    assert "no kernel and no copy runs" in text


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pinned -> Device)", ("HtoD", "pinned")),
        ("Memcpy DtoH (Device -> Pageable)", ("DtoH", "pageable")),
        ("Memcpy DtoD (Device -> Device)", ("DtoD", "")),
        ("CopyHostToDevice", ("CopyHostToDevice", "")),
    ],
)
def test_a_copy_is_pageable_or_pinned(name: str, direction: tuple[str, str]) -> None:
    assert copy_direction(name) == direction


def test_a_trace_of_a_device_alone_has_kernels_and_no_phases(tmp_path: Path) -> None:
    events = [event for event in of_a_device() if event["cat"] in ("kernel", "gpu_memcpy")]
    found = summarize(read_trace(written(tmp_path / "trace.json", events)))
    assert (found.steps, found.phases, found.operators) == (None, {}, ())
    assert [row.name for row in found.kernels] == ["gemm", "add"]
    assert found.idle.gaps[0].stood == ()
    assert "nothing that was recorded" in words(lambda s, c: page.page(s, tmp_path, c), found)


def test_events_without_a_usable_time_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = [
        "text",
        {"ph": "X", "name": "a", "cat": "cpu_op"},
        {"ph": "X", "name": "a", "cat": "cpu_op", "ts": float("nan"), "dur": 1},
        {"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": -1},
        {"ph": "X", "name": 5, "cat": "cpu_op", "ts": 1, "dur": 1},
        {"ph": "M", "name": "process_name"},
        {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": "many"}},
    ]
    path = written(tmp_path / "trace.json", [*bad, span("aten::add", "cpu_op", 5, 2)])
    recording = read_trace(path)
    assert recording.skipped == 5
    assert [each.name for each in recording.of(OPERATOR)] == ["aten::add"]
    found = summarize(recording)
    assert found.window_ms == pytest.approx(2)
    assert found.notes == ("5 events have no usable time and were ignored",)


def damaged(kind: str, path: Path) -> None:
    whole = json.dumps({"traceEvents": of_a_device()}).encode()
    contents = {
        "cut": whole[:-20],
        "cut and compressed": gzip.compress(whole)[:-30],
        "changed and compressed": gzip.compress(whole)[:40] + b"\0" * 60,
        "empty": b"",
        "binary": b"\x80\x04\x95\xff\xfe",
        "other JSON": b'{"cells": []}',
        "a number": b"5",
        "no list": b'{"traceEvents": {"a": 1}}',
        "no events": b'{"traceEvents": []}',
        "another program's": json.dumps([span("Paint", "blink", 0, 1)]).encode(),
        "deep": b"[" * 200_000,
    }
    path.write_bytes(contents[kind])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cut", "is damaged, or not JSON"),
        ("cut and compressed", "compressed data are incomplete"),
        ("changed and compressed", "compressed data are incomplete or changed"),
        ("empty", "is damaged, or not JSON"),
        ("binary", "is damaged, or not JSON"),
        ("other JSON", "without a list `traceEvents`"),
        ("a number", "without a list `traceEvents`"),
        ("no list", "without a list `traceEvents`"),
        ("no events", "no operator or kernel"),
        ("another program's", "holds 1 events, and no operator or kernel"),
        ("deep", "nested too deeply"),
    ],
)
def test_what_is_no_sound_trace_is_refused(kind: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    damaged(kind, path)
    with pytest.raises(UsageError, match=r"Expected: a trace that torch\.profiler") as raised:
        read_trace(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(of_a_device()))
    assert summarize(read_trace(path)).steps == 1


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="was not found"):
        read_trace(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("name", "begin", "is_trace"),
    [
        ("trace.json", "", True),
        ("a.pt.trace.json.gz", "", True),
        ("trace", ' \n{"traceEvents"', True),
        ("train.py", "[print(1)]", False),
        ("notes.ipynb", '{"cells"', False),
        ("train", "import torch", False),
    ],
)
def test_what_a_file_is_decides_who_reads_it(
    name: str, begin: str, is_trace: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(begin)
    assert is_trace_file(str(path)) == is_trace
    assert not is_trace_file(str(tmp_path / "missing"))
