"""`hotlap train` saves and ends at a signal, whatever it is doing, and at once at the second."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotlap.checkpoint.read import find_newest

RECIPE = """
import os, pathlib, time
import torch
from torch.utils.data import Dataset
import hotlap

MODE = os.environ["MODE"]

class Swallows(Dataset):
    '''Looks over what is broken, as such data sets do.'''
    def __init__(self, counts):
        self.counts = counts
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        while True:
            try:
                pathlib.Path(f"reading-{os.getpid()}").touch()
                time.sleep(0.01 if MODE != "hangs" else 600)
                return torch.full((3,), index / 4000), index % 2
            except:
                pass

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        pathlib.Path("evaluating").touch()
        time.sleep(0.01)
        return torch.zeros(3), 0

def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def task():
    return hotlap.Task(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)),
        loss=loss,
        data=torch.utils.data.Subset(Swallows(0), range(8)) if MODE == "evaluates" else Swallows(0),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        batch_size=4,
        epochs=3,
        held_out=Slow() if MODE == "evaluates" else None,
    )
"""
PLANS: dict[str, str] = {
    "alone": "[techniques]\n",
    "workers": "[techniques.workers]\ncount = 2\n",
}


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Start a training in a group of its own, and end all of it afterwards."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    started: list[subprocess.Popen[str]] = []

    def begin(mode: str, plan: str = "alone") -> "subprocess.Popen[str]":
        (tmp_path / "plan.toml").write_text("schema = 1\n" + PLANS[plan])
        argv = ["train", "recipe.py", "--run-dir", "run", "--plan", "plan.toml", "--json"]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "hotlap", *argv],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=_as_in_front,
                env={**os.environ, "MODE": mode},
            )
        )
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _as_in_front() -> None:
    # What a shell starts behind itself ignores Ctrl-C, and so does what that starts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(folder: Path, pattern: str, count: int = 1) -> None:
    until = time.monotonic() + 90
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < until, f"{pattern} never came"
        time.sleep(0.02)


def check_saved(folder: Path, out: str, err: str) -> int:
    """Return the steps of what was saved, having seen that nothing went wrong."""
    assert "Traceback" not in err and "defect" not in err, err
    report = json.loads(out)
    found, passed = find_newest(folder / "run" / "ckpt")
    assert found is not None and not passed
    assert report["stopped"] is True and report["steps"] == found.step
    names = sorted(path.name for path in (folder / "run" / "ckpt").iterdir())
    assert names == ["LATEST", found.path.name] and found.step > 0
    return found.step


@pytest.mark.parametrize(
    ("number", "send", "plan"),
    [
        (signal.SIGINT, os.killpg, "workers"),
        pytest.param(signal.SIGTERM, os.kill, "alone", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, os.killpg, "workers", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, os.killpg, "workers", marks=pytest.mark.slow),
    ],
)
def test_the_first_signal_saves_and_ends_whoever_else_got_it(
    number: signal.Signals,
    send: Callable[[int, int], None],
    plan: str,
    start: Any,
    tmp_path: Path,
) -> None:
    process = start("reads", plan)
    wait_for(tmp_path, "run/ckpt")
    wait_for(tmp_path, "reading-*", 2 if plan == "workers" else 1)
    time.sleep(0.5)
    send(process.pid, number)
    # As `timeout` does: once more to the process itself.
    os.kill(process.pid, number)
    sent = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert time.monotonic() - sent < 30
    assert f"{number.name}: ending after this step" in err
    assert check_saved(tmp_path, out, err) < 3000


@pytest.mark.slow
def test_it_saves_while_held_out_samples_are_measured(start: Any, tmp_path: Path) -> None:
    process = start("evaluates")
    until = time.monotonic() + 60
    wait_for(tmp_path, "run/ckpt")
    (tmp_path / "evaluating").unlink(missing_ok=True)
    while not (tmp_path / "evaluating").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    assert check_saved(tmp_path, out, err) == 2


@pytest.mark.slow
def test_the_second_signal_ends_a_data_set_that_hangs(start: Any, tmp_path: Path) -> None:
    process = start("hangs")
    wait_for(tmp_path, "reading-*")
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "again: ended at once" in err and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("delay", [each / 10 for each in range(0, 40, 4)])
def test_at_any_moment_of_the_start_it_ends_and_nothing_half_is_committed(
    delay: float, start: Any, tmp_path: Path
) -> None:
    process = start("reads", "workers")
    wait_for(tmp_path, "plan.toml")
    time.sleep(1 + delay)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (143, -signal.SIGTERM), err
    assert "Traceback" not in err
    del out
    found, passed = find_newest(tmp_path / "run" / "ckpt")
    assert not passed
    assert found is None or found.step > 0
