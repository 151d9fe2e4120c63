"""Seven scripts with one memory problem each, and their corrected versions, observed unedited."""

from pathlib import Path
from typing import Any

import pytest

from tests.diagnosis import memory_runs

HEAD = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(1280, 64), torch.randn(1280, 512))
loader = DataLoader(data, batch_size=64, shuffle=True)
"""
SMALL = "model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512))\n"
# Gradients count in the forward only where the activations are as large.
HEAVY = """model = nn.Sequential(
    nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 512), *[nn.Tanh() for _ in range(40)]
)
"""
TAIL = """optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()
"""
LOOP = """
for inputs, targets in loader:
    outputs = model(inputs)
    loss = criterion(outputs, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ERROR = "    error = error + (outputs - targets).abs().mean()\n"
KEEP = "    history.append(outputs)\n"
JOIN = "    seen = torch.cat([seen, outputs.detach()])\n"
NUMPY = "    kept.append(np.array(inputs.numpy()))\n"
SPIKE = "        gaps = (outputs[:, None] - outputs[None]).abs().sum(-1)\n"
SCORES = "    scores = outputs.detach().repeat(1, 6)\n    best = scores.amax().item()\n"
ZERO = "    optimizer.zero_grad()\n"


def swap_zeroing(loop: str) -> str:
    """Return the loop with its gradients cleared after the forward."""
    return loop.replace(ZERO, "").replace("    loss.backward()", f"{ZERO}    loss.backward()")


WITH_SPIKE = LOOP + "    with torch.no_grad():\n"
CASES = {
    # Name: (script, text of the line, bytes, name of the holder).
    "retained_loss": (SMALL + TAIL + "error = 0.0" + LOOP + ERROR, ERROR, 64 * 512 * 4, "error"),
    "retained_outputs": (
        SMALL + TAIL + "history = []" + LOOP + KEEP,
        KEEP,
        64 * 512 * 4,
        "history",
    ),
    "growing_tensor": (
        SMALL + TAIL + "seen = torch.empty(0, 512)" + LOOP + JOIN,
        JOIN,
        64 * 512 * 4,
        "seen",
    ),
    "growing_host_list": (SMALL + TAIL + "kept = []" + LOOP + NUMPY, NUMPY, 64 * 64 * 4, "kept"),
    "gradients_in_forward": (
        HEAVY + TAIL + swap_zeroing(LOOP),
        ZERO,
        (64 * 2048 + 2048 + 2048 * 512 + 512) * 4,
        "parameter.grad",
    ),
    "loop_variable": (
        SMALL + TAIL + LOOP + SCORES,
        SCORES.splitlines()[0],
        64 * 512 * 6 * 4,
        "scores",
    ),
    "memory_spike": (SMALL + TAIL + WITH_SPIKE + SPIKE, SPIKE, 2 * 64 * 64 * 512 * 4, ""),
}
CORRECTED = {
    "gradients in the forward": HEAVY + TAIL + LOOP,
    "all others": SMALL
    + TAIL
    + "error, history, seen, kept = 0.0, [], torch.empty(0, 512), []"
    + LOOP
    + ERROR.replace("mean()", "mean().item()")
    + KEEP.replace("outputs", "outputs.mean().item()")
    + JOIN.replace("seen, ", "")
    + NUMPY.replace("inputs", "inputs.mean()")
    + SCORES
    + "    del scores\n    with torch.no_grad():\n"
    + SPIKE.replace(
        "(outputs[:, None] - outputs[None]).abs().sum(-1)", "torch.cdist(outputs, outputs, p=1)"
    ),
}


def diagnosed(folder: Path, text: str, *options: str) -> dict[str, Any]:
    """Return what `hotlap diagnose --memory --json` prints of a script."""
    # Nothing is left of the budget for long trials of autocast.
    return memory_runs.diagnosed(folder, HEAD + text, *options, budget="8s")


@pytest.mark.slow
@pytest.mark.parametrize("rule", CASES)
def test_a_planted_problem_is_found_at_its_line_and_its_size(rule: str, tmp_path: Path) -> None:
    wrong, line, size, holder = CASES[rule]
    (found,) = diagnosed(tmp_path, wrong)["findings"]
    number = (HEAD + wrong).splitlines().index(line.rstrip("\n")) + 1
    assert (found["rule"], found["kind"]) == (rule, "memory")
    assert found["where"] == f"train.py:{number}"
    assert found["holder"] == holder
    assert found["cost_bytes"] == pytest.approx(size, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("text", CORRECTED.values(), ids=[*CORRECTED])
def test_nothing_is_reported_of_the_corrected_script(text: str, tmp_path: Path) -> None:
    assert diagnosed(tmp_path, text)["findings"] == []


@pytest.mark.slow
def test_only_the_picture_that_was_asked_for_is_written(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, SMALL + TAIL + LOOP, "--svg", "memory.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.svg", "train.py"]
    assert "activations" in (tmp_path / "memory.svg").read_text()
    memory = found["memory"]
    assert sum(memory["by_kind"].values()) == memory["peak_bytes"]
    weights = (64 * 256 + 256 + 256 * 512 + 512) * 4
    assert memory["by_kind"]["parameters"] == weights
