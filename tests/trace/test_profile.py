"""Traces of torch's profiler: labelled by hotlap, read back, and those of others."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile

from hotlap.errors import UsageError
from hotlap.trace.profile_reading import read_profile, summarize
from hotlap.trace.profiler import StepProfiler


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def train(profiler: StepProfiler | None, steps: int = 40) -> Net:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    if profiler is not None:
        profiler.watch(model)
    for _ in range(steps):
        inputs, labels = torch.randn(256, 64), torch.randint(10, (256,))
        if profiler is not None:
            profiler.enter_phase("forward")
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if profiler is not None:
            profiler.enter_phase("backward")
        loss.backward()
        if profiler is not None:
            profiler.enter_phase("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        if profiler is not None and profiler.step_ends():
            break
    return model


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepProfiler, Path]:
    profiler, path = StepProfiler(["cpu"]), tmp_path_factory.mktemp("profile") / "trace.json"
    train(profiler)
    told = profiler.report(path)
    assert told["profiled"] == 4 and told["profiled_s"] > 0 and not told["is_compiled"]
    return profiler, path


def test_regions_and_modules_bear_their_names_in_the_trace(
    traced: tuple[StepProfiler, Path],
) -> None:
    text = traced[1].read_text()
    for name in ("blocks.1.attention (Linear)", "hotlap.backward", "ProfilerStep#2"):
        assert f'"{name}"' in text
    found = read_profile(traced[1])
    assert found.steps == 4 and found.has_phases
    rows = {row.name: row for row in found.modules}
    assert {"Net", "blocks", "blocks.0", "blocks.1.attention", "head"} <= rows.keys()
    assert rows["blocks.0.attention"].calls == 1
    # What calls another takes at least as long, forward and backward.
    for outer, inner in (
        ("Net", "blocks"),
        ("blocks", "blocks.0"),
        ("blocks.0", "blocks.0.attention"),
    ):
        assert rows[outer].ms >= rows[inner].ms > 0
        assert rows[outer].more_ms >= rows[inner].more_ms > 0
    phases = found.phases_ms
    assert phases["forward"] >= rows["Net"].ms
    assert sum(phases.values()) - phases["idle"] == pytest.approx(found.step_ms, rel=0.05)


def test_times_in_operators_are_those_of_the_profiler(traced: tuple[StepProfiler, Path]) -> None:
    made = traced[0]._profile
    assert made is not None
    expected = {row.key: row for row in made.key_averages()}
    found = read_profile(traced[1])
    assert len(found.operators) > 8
    for row in found.operators:
        assert row.ms * 4e3 == pytest.approx(
            expected[row.name].self_cpu_time_total, rel=0.01, abs=1
        )
        assert row.calls * 4 == expected[row.name].count
    total = sum(row.self_cpu_time_total for row in expected.values() if row.key.startswith("aten"))
    mine = sum(row.ms * 4e3 for row in found.operators if row.name.startswith("aten"))
    assert 0.5 * total < mine <= 1.01 * total


def test_the_functions_that_operators_run_in_are_the_users(
    traced: tuple[StepProfiler, Path],
) -> None:
    places = {row.name: row.where for row in read_profile(traced[1]).operators}
    assert (
        places["aten::addmm"].startswith("forward (") or "test_profile.py" in places["aten::addmm"]
    )
    assert not any("torch/" in where for where in places.values())


def test_a_profile_changes_nothing_of_what_is_learned() -> None:
    plain, seen = train(None, 20), train(StepProfiler(["cpu"]), 20)
    # The profile ends the run: as many steps.
    again = train(None, 8)
    assert len(list(plain.parameters())) == len(list(seen.parameters()))
    equal = [torch.equal(a, b) for a, b in zip(again.parameters(), seen.parameters(), strict=True)]
    assert all(equal)


def test_what_comes_after_the_steps_is_not_in_the_trace(tmp_path: Path) -> None:
    profiler = StepProfiler(["cpu"])
    train(profiler)
    torch.ones(3).erfinv()
    profiler.report(tmp_path / "trace.json")
    assert "aten::erfinv" not in (tmp_path / "trace.json").read_text()


def test_a_run_that_ends_before_a_profiled_step_writes_nothing(tmp_path: Path) -> None:
    profiler = StepProfiler(["cpu"])
    train(profiler, 3)
    assert profiler.report(tmp_path / "trace.json")["profiled"] == 0
    assert not (tmp_path / "trace.json").exists()


def test_a_trace_of_somebody_else_is_read_and_phases_are_told_by_names(tmp_path: Path) -> None:
    with profile() as made:
        train(None, 5)
    path = tmp_path / "trace.json"
    made.export_chrome_trace(str(path))
    found = read_profile(path)
    assert found.steps == 1 and not found.has_phases and not found.modules
    assert min(found.phases_ms[name] for name in ("forward", "backward", "optimizer")) > 0
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_profile(packed) == found


def span(name: str, kind: str, begin: float, length: float, **more: Any) -> dict[str, Any]:
    thread = {"kernel": 7, "gpu_memcpy": 7}.get(kind, 1)
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "ts": begin,
        "dur": length,
        "pid": 0,
        "tid": thread,
        **more,
    }


ON_GPU = [
    span("ProfilerStep#3", "user_annotation", 0, 1000),
    span("train.py(40): load", "python_function", 100, 500),
    span("aten::mm", "cpu_op", 10, 50),
    span("cudaStreamSynchronize", "cuda_runtime", 620, 100),
    span("gemm", "kernel", 50, 100),
    span("gemm", "kernel", 600, 100),
    span("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 700, 50),
]


def test_kernels_copies_waits_and_gaps_of_a_device() -> None:
    found = summarize(ON_GPU, "trace.json")
    assert [(row.name, row.ms, row.calls) for row in found.kernels] == [("gemm", 0.2, 2)]
    assert [row.name for row in found.copies] == ["Memcpy HtoD (Pageable -> Device)"]
    assert [(row.name, row.ms) for row in found.waits] == [("cudaStreamSynchronize", 0.1)]
    assert found.device_busy == pytest.approx(0.25)
    longest = found.gaps[0]
    assert (longest.ms, longest.after_ms) == (0.45, 0.15)
    assert "load (train.py:40)" in longest.during


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cannot be read as a trace"),
        (b"\x1f\x8bxx", "cannot be read as a trace"),
        (b'{"a": 1}', "no `traceEvents`"),
        (b'{"traceEvents": [1, {"ph": "X"}, {"ph": "M"}]}', "shows no operator"),
        (json.dumps([span("f", "python_function", 0, 1)]).encode(), "shows no operator"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_profile(path)


def test_a_compiled_part_is_not_labelled_and_that_is_said() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
    )  # pyright: ignore
    profiler = StepProfiler(["cpu"])
    profiler.watch(model)
    assert profiler.is_compiled
    assert len(model[0]._forward_pre_hooks) == 1
    assert not any(module._forward_pre_hooks for module in model[1].modules())
