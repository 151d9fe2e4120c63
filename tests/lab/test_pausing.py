"""A trial that is paused takes nothing from the one whose turn it is."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hotlap.attach.entry import Script
from hotlap.lab.trial import Lab

SCRIPT = """
import subprocess
import sys

import torch

busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
print("it trains", flush=True)
while True:
    (weight - 1).square().sum().backward()
    optimizer.step()
"""


def cpu_s(family: list[psutil.Process]) -> float:
    """Return the seconds that the processes have computed."""
    times = [process.cpu_times() for process in family]
    return sum(each.user + each.system for each in times)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.slow
def test_a_paused_trial_computes_nothing_children_included(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    before = set(psutil.Process().children(recursive=True))
    with Lab(Script(path="script.py", cwd=str(tmp_path))) as lab:
        trial = lab.start("observe", seconds=600, epochs=9, steps=10**9, naming_s=0)
        wait_for(lambda: "it trains" in trial.output, trial.output)
        family = list(set(psutil.Process().children(recursive=True)) - before)
        assert len(family) >= 2
        for _ in range(2):
            begun = cpu_s(family)
            wait_for(lambda begun=begun: cpu_s(family) > begun + 0.05, "it never goes on")
            trial.pause()
            time.sleep(0.05)
            paused = cpu_s(family)
            time.sleep(0.4)
            assert cpu_s(family) == paused
            trial.resume()
