"""What hotlap's hooks cost a step that is observed: heard and not heard in turns, in one process.

The script trains a step of some 10 ms. While it is observed, it switches hotlap's listener off and
on again between blocks of steps, in the order A B B A, and compares the two halves of each group.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.__main__ import Result
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab import first_steps
from hotlap.lab.statistics import interval
from hotlap.lab.trial import Lab

SCRIPT = """\
import contextlib, json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from hotlap.attach.listener import State, mute_listener

width, groups, block = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
data = TensorDataset(torch.randn(64 * 64, width), torch.randint(0, 10, (64 * 64,)))
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(data, 64, shuffle=True)

def batches():
    while True:
        yield from loader

source = batches()

def train(steps):
    began = time.perf_counter()
    for _ in range(steps):
        inputs, labels = next(source)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - began) / steps * 1000

train(3 * block)
assert State.listener is not None
rows = []
for _ in range(groups):
    row = {}
    for kind in ("heard", "muted", "muted", "heard"):
        with mute_listener() if kind == "muted" else contextlib.nullcontext():
            row[kind] = row.get(kind, 0) + train(block) / 2
    rows.append(row)
print("ROWS" + json.dumps(rows) + "END", flush=True)
"""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--groups N`, `--width N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks hooks")
    parser.add_argument("--groups", type=int, default=4 if quick else 40)
    parser.add_argument("--width", type=int, default=1536)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "script.py").write_text(SCRIPT)
        words = (str(args.width), str(args.groups), "10")
        script = Script(path="script.py", args=words, cwd=folder, python=sys.executable)
        with Lab(script) as lab:
            most = {
                "seconds": 10**6,
                "epochs": 10**9,
                "steps": 10**9,
                "naming_s": 0,
                "stays": False,
            }
            trial = lab.start("observe", folder=str(lab.exchange), **most)
            first_steps.report_of(trial, 60.0, lambda _: 600.0)
            trial.kill()
            found = re.search(r"ROWS(.*)END", trial.output, re.DOTALL)
    assert found is not None, trial.output
    rows = json.loads(found[1])
    ratios = [row["heard"] / row["muted"] for row in rows]
    low, high = interval(ratios)
    figures = {
        "step_ms": median(row["muted"] for row in rows),
        "hooks_us": 1000 * median(row["heard"] - row["muted"] for row in rows),
        "ratio": median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }
    rounded = [{kind: round(value, 3) for kind, value in row.items()} for row in rows]
    summary = (
        f"hooks cost {figures['hooks_us']:.0f} us of a step of {figures['step_ms']:.2f} ms: "
        f"{figures['ratio']:.4f} ({low:.4f} to {high:.4f}), n = {len(rows)}"
    )
    notes = [summary, "`heard` is observed, `muted` calls the same patches, which then do nothing"]
    return Result(figures, rounded, notes)
