"""A tuning that was interrupted is continued; one that is done is given once more."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-m", "hotlap", "tune", "--json", "--budget", "120s")
ARGV = (*COMMAND, "--only", "resident", "train.py")
SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        return torch.full((8,), float(sum(range(20_000)) % 7 + index))

torch.manual_seed(0)
loader = DataLoader(Slow(), batch_size=16, shuffle=True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for epoch in range(500):
    for x in loader:
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_what_was_measured_before_an_interruption_is_used(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    _interrupt_at(tmp_path, "proving")
    continued, said, _ = _tune(tmp_path)
    assert "continuing the tuning of" in said
    assert "in one process, switched" not in said, "what raced was raced once more"
    assert not continued["is_kept"]
    assert continued["plan"] == {"resident": {}}, continued
    assert continued["speedup_live"]["median"] > 1

    given, said, seconds = _tune(tmp_path)
    assert "--again" in said and given["is_kept"]
    assert seconds < 10
    assert given["speedup"] == continued["speedup"]
    assert given["seconds"] == continued["seconds"]

    # What was measured since, or written by hand, is not replaced by what is printed again.
    plan = tmp_path / "train.plan.toml"
    other = 'schema = 1\n[techniques.optimizer]\nimplementation = "foreach"\n'
    plan.write_text(other)
    given, _, _ = _tune(tmp_path)
    assert given["is_kept"] and given["plan_file"] is None
    assert plan.read_text() == other
    given, said, _ = _tune(tmp_path, "--out", str(plan))
    assert given["plan_file"] == str(plan) and plan.read_text() != other

    with (tmp_path / "train.py").open("a") as file:
        file.write("\n# edited\n")
    _interrupt_at(tmp_path, "in one process, switched")


def _tune(folder: Path, *more: str) -> tuple[dict[str, Any], str, float]:
    """Return the report, what was said meanwhile, and the seconds that it took."""
    started = time.monotonic()
    done = subprocess.run(
        [*ARGV[:-1], *more, ARGV[-1]], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, time.monotonic() - started


def _interrupt_at(folder: Path, words: str) -> None:
    """Press Ctrl-C as soon as a line of progress has these words."""
    with subprocess.Popen(
        ARGV,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell without job control starts in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if words in line:
                process.send_signal(signal.SIGINT)
                break
        process.stderr.read()
        assert process.wait(30) != 0, "".join(said)
