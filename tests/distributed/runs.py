"""`hotlap train` as a process of its own, met in the middle by tests."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
TRAIN = [sys.executable, "-m", "hotlap", "train", "tests/distributed/recipe.py"]
PATIENCE_S = 180.0


def started(*options: str, command: Any = TRAIN, **variables: str) -> "subprocess.Popen[str]":
    places = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places), **variables}
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(run: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for the end; return the exit code and what was said on standard error."""
    _, said = run.communicate(timeout=PATIENCE_S)
    return run.returncode, said


def weights(run_dir: Path) -> dict[str, Any]:
    newest = sorted((run_dir / "ckpt").glob("step-*"))[-1]
    return {k: v.tolist() for k, v in load_file(newest / "model.safetensors").items()}


def saved_steps(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "ckpt").glob("step-*"))


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def ranks_of(run: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the ranks of a launcher, the first one first."""
    return sorted(psutil.Process(run.pid).children(), key=lambda rank: rank.pid)


def are_gone(processes: list[psutil.Process]) -> bool:
    """True if none runs; one that is dead and not reaped would count as running."""
    return not any(each.is_running() for each in processes)
