"""A window of torch.profiler in a run: its steps, files and lines, and what comes in between."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from hotlap.trace import profiler_window
from hotlap.trace.chrome.reading import read_trace
from hotlap.trace.chrome.summary import summarize
from hotlap.trace.clock import BACKWARD, FORWARD, OPTIMIZER, OTHER
from hotlap.trace.profile_schema import TRACE, WindowRecord
from hotlap.trace.profiler_window import ProfilerWindow
from hotlap.trace.regions import PhaseRegions
from tests.trace.profiled import network


def trained(window: ProfilerWindow | None, model: nn.Module, most: int = 60) -> list[float]:
    """Take steps until the window is over; return their losses."""
    phases = PhaseRegions() if window is None else window.phases
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, inputs = [], torch.linspace(0, 1, 4 * 32).view(4, 32)
    for _ in range(most):
        phases.enter(FORWARD)
        loss = model(inputs).square().sum()
        phases.enter(BACKWARD)
        loss.backward()
        phases.enter(OPTIMIZER)
        optimizer.step()
        optimizer.zero_grad()
        phases.enter(OTHER)
        losses.append(loss.item())
        if window is not None and window.step_done():
            break
    if window is not None:
        window.close()
    return losses


def made(
    folder: Path, model: nn.Module, kinds: Sequence[str] = ("cpu",), seconds: float = 60.0
) -> ProfilerWindow:
    return ProfilerWindow(kinds, folder, seconds, lambda: [model])


@pytest.mark.parametrize("compiled", [0, 1])
def test_fewer_steps_are_recorded_where_there_is_no_time_for_more(
    compiled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler_window, "compiled_frames", lambda: compiled)
    model = network()
    losses = trained(made(tmp_path, model, seconds=1e-6), model)
    assert WindowRecord.read(tmp_path).steps == 2
    # Warm-up, a plain one, one that shows whether the modules' names lead to a compilation, and
    # each window's first, which is not recorded.
    assert len(losses) == 3 + 1 + compiled + 1 + 2 + 1 + 2


def test_a_window_records_its_steps_with_phases_modules_and_lines(tmp_path: Path) -> None:
    model = network()
    losses = trained(made(tmp_path, model), model)
    record = WindowRecord.read(tmp_path)
    assert (record.has_trace, record.steps, record.notes) == (True, 6, ())
    assert len(losses) < 20
    assert record.plain_ms is not None
    assert record.recorded_ms is not None
    found = summarize(read_trace(tmp_path / TRACE))
    assert found.steps == 6
    assert {"Sequential", "0", "1", "1.0", "2"} <= {region.name for region in found.regions}
    assert all(found.phases[phase] > 0 for phase in ("forward", "backward", "optimizer"))
    assert sum(found.phases.values()) == pytest.approx(found.window_ms)
    text = Path(__file__).read_text().splitlines()
    forward = next(n for n, line in enumerate(text, 1) if "loss = model(inputs)" in line)
    rows = {row.name: row for row in found.with_lines(lines_of(record)).operators}
    assert lines_of(record)["1.0", "aten::addmm"].endswith(f"test_profiler_window.py:{forward}")
    assert rows["aten::addmm"].where.endswith(f"test_profiler_window.py:{forward}")
    assert rows["autograd::engine::evaluate_function: AddmmBackward0"].where.endswith(
        f":{forward + 2}"
    )
    # A plain run, without a window, has the same losses, and the model is as it was.
    assert trained(None, network(), most=len(losses)) == losses
    assert not any(each._forward_hooks for each in model.modules())


def lines_of(record: WindowRecord) -> dict[tuple[str, str], str]:
    return {(region, operator): where for region, operator, where in record.lines}


@pytest.mark.parametrize("steps", [2, 7, 11, 16])
def test_a_run_that_ends_before_gives_what_there_is(steps: int, tmp_path: Path) -> None:
    model = network()
    trained(made(tmp_path, model), model, most=steps)
    record = WindowRecord.read(tmp_path)
    assert record.has_trace == (steps > 9) == (tmp_path / TRACE).exists()
    assert not torch.autograd._profiler_enabled()
    assert not any(each._forward_hooks for each in model.modules())
    if record.has_trace:
        assert summarize(read_trace(tmp_path / TRACE)).operators


def test_a_script_that_profiles_itself_is_left_alone(tmp_path: Path) -> None:
    model = network()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        trained(made(tmp_path, model), model)
    record = WindowRecord.read(tmp_path)
    assert not record.has_trace
    assert "runs a profiler of its own" in record.notes[0]
    assert any(row.key == "aten::addmm" for row in theirs.key_averages())


def test_memory_is_recorded_where_it_was_asked_for_alone(tmp_path: Path) -> None:
    model, peaks = network(), {}
    for kind in ("cpu", "memory"):
        (tmp_path / kind).mkdir()
        trained(made(tmp_path / kind, model, (kind,)), model)
        peaks[kind] = summarize(read_trace(tmp_path / kind / TRACE)).peak_bytes
    assert peaks["cpu"] == {}
    assert peaks["memory"]["cpu"] > 0
