"""An observed example computes the same losses, bit for bit, as the plain one."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 12
PLAIN = """\
import json, os, runpy, sys
import torch

losses, most, path = [], int(sys.argv[1]), sys.argv[2]
sys.argv, sys.path[0] = sys.argv[2:], os.path.dirname(os.path.abspath(path))
backward = torch.Tensor.backward

def note(self, *args, **kwargs):
    losses.append(self.item())
    backward(self, *args, **kwargs)
    if len(losses) == most:
        end()

def end():
    print("LOSSES" + json.dumps(losses), flush=True)
    os._exit(0)

torch.Tensor.backward = note
runpy.run_path(path, run_name="__main__")
end()
"""
COMPILED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    model = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(40):
        for x, y in DataLoader(data, 32, shuffle=True, num_workers=2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


def plain_losses(path: Path, args: Sequence[str], runner: Path) -> list[float]:
    """Run the script without hotlap, and return its first losses."""
    ended = subprocess.run(
        [sys.executable, str(runner), str(STEPS), str(path), *args],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=300,
        env={key: value for key, value in os.environ.items() if not key.startswith("HOTLAP_")},
    )
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("LOSSES")]
    return json.loads(line.removeprefix("LOSSES"))


@pytest.mark.parametrize(
    ("example", "args"),
    [
        ("fashion_mnist", ("--model", "mlp")),
        ("fashion_mnist", ("--model", "cnn")),
        ("gpt", ()),
        ("jpeg", ()),
        ("lecture", ()),
        ("sequences", ()),
        ("stream", ()),
        ("two_class", ()),
        ("compiled, with workers", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(value),
)
def test_an_observed_run_has_the_losses_of_the_plain_one(
    example: str, args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The data are then what every host has.
    monkeypatch.delenv("HOTLAP_DATA", raising=False)
    runner = tmp_path / "runner.py"
    runner.write_text(PLAIN)
    path = EXAMPLES / example / "plain.py"
    if not path.exists():
        path = tmp_path / "train.py"
        path.write_text(COMPILED)
    expected = plain_losses(path, args, runner)
    with Lab(Script(path=path.name, args=args, cwd=str(path.parent))) as lab:
        trace = watch(lab, seconds=60, steps=STEPS, epochs=99).trace
    # Three epochs of two_class have six steps.
    assert len(expected) == (6 if example == "two_class" else STEPS)
    assert list(trace.losses)[:STEPS] == expected
    assert expected[0] != expected[1]
