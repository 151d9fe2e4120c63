"""`hotlap diagnose` on a real script: what is sampled under a line is a finding with its cost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """\
import gc
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(256, 64)
for step in range(100_000):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    EXTRA
"""


def diagnosed(folder: Path, extra: str) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("EXTRA", extra))
    command = [sys.executable, "-m", "hotlap", "diagnose", "--json", "--budget", "8s", "train.py"]
    process = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.slow
def test_a_costly_line_is_the_first_finding(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "gc.collect()")
    first = report["findings"][0]
    assert (first["rule"], first["where"]) == ("garbage_collection_in_loop", "train.py:12")
    assert 0.5 < first["cost_ms"] / report["step_ms"]["mean"] <= 1
    assert first["low"] <= first["cost_ms"] <= first["high"]
    assert first["confidence"] == "medium" and first["plan"] == {}
    assert "sampled" in first["evidence"]


@pytest.mark.slow
def test_without_the_line_nothing_is_sampled_that_costs(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "pass")
    assert [one["rule"] for one in report["findings"] if "sampled" in one["evidence"]] == []
