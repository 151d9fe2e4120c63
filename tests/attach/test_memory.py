"""Techniques that need less memory serve a script that nobody edited."""

import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.attach.runner import run
from hotlap.plan import Plan

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)

def block():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))

model = nn.Sequential(nn.Embedding(50, 16), nn.Sequential(block(), block()), nn.Linear(16, 50))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for step in range(4):
    words = torch.randint(0, 50, (4, 6))
    logits = model(words)
    loss = criterion(logits.view(-1, 50), words.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item()!r} {int((logits.argmax(-1) == words).sum())}")
print(list(model.state_dict()))
"""


@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_script_prints_what_it_prints(exact: bool, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    chosen = Plan({"recompute": {}} if exact else {"recompute": {}, "chunked_loss": {"rows": 5}})
    with (tmp_path / "out").open("w") as stream:
        done = run(Script(path=str(path), cwd=str(tmp_path)), chosen, stdout=stream.fileno())
    assert done.exit_code == 0
    assert {row["state"] for row in done.techniques} == {"applied"}, done.techniques
    plain = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True
    ).stdout.splitlines()
    ours = (tmp_path / "out").read_text().splitlines()
    assert ours[-1] == plain[-1]
    if exact:
        assert ours == plain
    for mine, theirs in zip(ours[:-1], plain[:-1], strict=True):
        assert float(mine.split()[0]) == pytest.approx(float(theirs.split()[0]), rel=1e-4)
