"""Scripts that never train, die, hang, print without end or are short: said so, and in time."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
Call = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """\
import os, sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    {fault}
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
"""
BUDGET_S = 20


def diagnosed(
    hotlap: Call, folder: Path, steps: int, fault: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Diagnose a script with this statement in its loop; return its end and its seconds."""
    (folder / "train.py").write_text(SCRIPT.format(steps=steps, fault=fault))
    began = time.monotonic()
    ended = hotlap("diagnose", "--json", "--budget", f"{BUDGET_S}s", "train.py", timeout_s=100)
    return ended, time.monotonic() - began


@pytest.mark.parametrize(
    ("steps", "fault", "words"),
    [
        (0, "pass", ["ended without an optimizer step"]),
        (99, "if step == 3: raise ValueError('bad batch')", ["exit code 1", "bad batch"]),
        (99, "if step == 3: time.sleep(600)", ["did not respond", "train.py:9"]),
        (99, "if step == 3: os._exit(5)", ["exit code 5"]),
        (99, "if step == 3: os._exit(0)", ["was ended by `os._exit`, before the measurement"]),
        (10**9, "if step == 400: os._exit(0)", ["was ended by `os._exit`, before the measurement"]),
    ],
    ids=["never trains", "crash", "hang", "os._exit 5", "os._exit 0", "os._exit later"],
)
def test_a_script_that_cannot_be_measured_is_said_to_be_so_in_time(
    steps: int, fault: str, words: list[str], hotlap: Call, tmp_path: Path
) -> None:
    ended, seconds = diagnosed(hotlap, tmp_path, steps, fault)
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "hotlap failed inside" not in ended.stderr
    for each in words:
        assert each in ended.stderr
    assert seconds < BUDGET_S + 10


def test_a_hang_is_noticed_in_time_where_memory_is_observed(hotlap: Call, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SCRIPT.format(steps=99, fault="if step == 3: time.sleep(600)")
    )
    began = time.monotonic()
    options = ("--memory", "--budget", f"{BUDGET_S}s")
    ended = hotlap("diagnose", *options, "train.py", timeout_s=100)
    assert ended.returncode == 1
    assert "did not respond" in ended.stderr and "train.py:9" in ended.stderr
    assert time.monotonic() - began < BUDGET_S + 10


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        (10**9, "if step < 100: print('x' * 2**20)"),
        (12, "pass"),
    ],
    ids=["prints 100 MB", "12 steps"],
)
def test_a_script_that_is_short_or_loud_is_measured_in_time(
    steps: int, fault: str, hotlap: Call, tmp_path: Path
) -> None:
    ended, seconds = diagnosed(hotlap, tmp_path, steps, fault)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["step_ms"]["n"] >= (11 if steps == 12 else 50)
    assert len(ended.stdout) < 10**5
    assert seconds < BUDGET_S + 10
