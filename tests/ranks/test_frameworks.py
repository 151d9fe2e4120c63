"""Accelerate and Lightning on two gloo ranks, unedited: every rank trains under the plan."""

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from hotlap.attach import rank_report
from hotlap.attach.entry import Script
from hotlap.attach.launchers import split_command
from hotlap.attach.runner import Outcome
from hotlap.attach.runner import run as run_script
from hotlap.techniques import EXACT_PLAN

Call = Callable[..., subprocess.CompletedProcess[str]]
HERE = Path(__file__).parent
ACCELERATE = str(HERE / "with_accelerate.py")
LIGHTNING = str(HERE / "with_lightning.py")
TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2")
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed"
)
needs_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="lightning is not installed"
)
WAYS = [
    pytest.param((*TORCHRUN, ACCELERATE), 18, marks=needs_accelerate, id="accelerate, torchrun"),
    pytest.param(
        (*TORCHRUN, ACCELERATE, "--accumulate", "2"),
        9,
        marks=needs_accelerate,
        id="accelerate, accumulating",
    ),
    pytest.param((LIGHTNING,), 18, marks=needs_lightning, id="lightning, own launcher"),
    pytest.param(
        (LIGHTNING, "--strategy", "ddp_spawn"),
        18,
        marks=needs_lightning,
        id="lightning, spawn",
    ),
]


def script_of(words: tuple[str, ...], folder: Path) -> Script:
    command = split_command(words)
    if command is None:
        return Script(path=words[0], args=words[1:], cwd=str(folder))
    return Script(module=command[0], args=command[1], cwd=str(folder))


def run_plainly(script: Script) -> list[str]:
    ended = subprocess.run(
        script.command(),
        cwd=script.folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return of_ranks(ended.stdout)


def run_under_plan(script: Script) -> tuple[list[str], Outcome]:
    with open(script.folder / "printed", "w+") as printed:
        outcome = run_script(script, EXACT_PLAN, stdout=printed.fileno())
        printed.seek(0)
        return of_ranks(printed.read()), outcome


def of_ranks(printed: str) -> list[str]:
    return sorted(line for line in printed.splitlines() if line.startswith("rank "))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "steps"), WAYS)
def test_every_rank_trains_under_the_plan_and_learns_the_same(
    words: tuple[str, ...], steps: int, tmp_path: Path
) -> None:
    script = script_of(words, tmp_path)
    plain = run_plainly(script)
    if "ddp_spawn" in words:
        # Only the script's own process goes on behind them, and it has taken no step.
        assert len(plain) == 1
    else:
        assert len(plain) == 2 and all(f" steps {steps} " in line for line in plain)
    printed, outcome = run_under_plan(script)
    assert outcome.exit_code == 0
    assert printed == plain
    heard = sorted((child.rank, child.steps) for child in outcome.children if child.trains)
    assert heard == [(0, steps), (1, steps)]
    said = [line.partition("; one copy")[0] for line in rank_report.lines(outcome.children, 0)]
    assert sorted(said) == [f"{name}: applied in 2 of 2 ranks" for name in EXACT_PLAN.techniques]
    assert outcome.problems(script) == []


@pytest.mark.slow
@needs_accelerate
def test_the_one_process_that_accelerate_starts_is_attached_to(hotlap: Call) -> None:
    launch = ("accelerate", "launch", "--cpu", "--num_processes", "2")
    ended = hotlap("run", *launch, ACCELERATE, timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    # One process, and so twice as many steps in an epoch.
    assert "rank 0 steps 36 " in ended.stdout and "rank 1" not in ended.stdout
    assert "hotlap: optimizer: applied in 1 of 1 ranks\n" in ended.stderr
    assert "`accelerate launch` has started one process, not 2" in ended.stderr


@pytest.mark.slow
@needs_lightning
def test_a_diagnosis_measures_the_first_rank(hotlap: Call) -> None:
    ended = hotlap(
        "diagnose", "--json", "--budget", "20s", LIGHTNING, "--epochs", "300", timeout_s=240
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["notes"][0].startswith("2 ranks train; the first one was measured")
    assert found["anchor"]["votes"]["optimizer_steps"] > 6
    # Lightning's step calls a closure, with forward and backward in it.
    assert all(found["phases"][name] > 0.0 for name in ("forward", "backward", "optimizer"))
    # It sets the epoch of the sampler that it makes.
    assert found["mistakes"] == []
