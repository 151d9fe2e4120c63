"""`hotlap train --devices`: what happens to a run whose ranks are stopped, killed or resumed."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.runs import PATIENCE_S, TRAIN, ended, ranks_of, started, wait_for, weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), (2, 3)])
def test_a_run_goes_on_with_another_number_of_devices(
    first: int, then: int, alone: Any, tmp_path: Path
) -> None:
    for devices, epochs in ((first, 1), (then, 3)):
        options = ["--run-dir", str(tmp_path), "--resume", "auto", "--epochs", str(epochs)]
        code, said = ended(started(*options, "--devices", str(devices)))
        assert code == 0, said
    assert weights(tmp_path) == alone


@pytest.mark.parametrize("by", ["hotlap", "torchrun"])
def test_ranks_keep_one_copy_of_the_dataset(by: str, alone: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("schema = 1\n[techniques.resident]\n")
    options = ["--plan", str(plan), "--run-dir", str(tmp_path / "run")]
    if by == "hotlap":
        run = started(*options, "--devices", "2")
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        run = started(*options, command=[*torchrun, "--standalone", "-m", *TRAIN[2:]])
    printed, said = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, said
    assert weights(tmp_path / "run") == alone
    if hasattr(os, "memfd_create"):
        assert "one copy for 2 ranks" in " ".join((printed + said).split())


def test_under_torchrun_it_is_the_same_run(alone: Any, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, "-m", "hotlap", *TRAIN[3:]]
    code, said = ended(started("--run-dir", str(tmp_path), command=command))
    assert code == 0, said
    assert weights(tmp_path) == alone
    assert said.count("epoch 1 of 3") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_rank_that_is_killed_ends_the_run_which_can_be_resumed(
    number: signal.Signals, alone: Any, tmp_path: Path
) -> None:
    options = ["--run-dir", str(tmp_path), "--save-every", "1steps", "--devices", "2"]
    run = started(*options, "--pause_ms", "300")
    wait_for(lambda: len(list((tmp_path / "ckpt").glob("step-*"))) > 1)
    ranks = ranks_of(run)
    os.kill(ranks[1].pid, number)
    begun = time.monotonic()
    code, said = ended(run)
    assert time.monotonic() - begun < 10
    assert (code, said.count(f"rank 1 was ended by {number.name}")) == (1, 1), said
    assert not any(rank.is_running() for rank in ranks)
    code, said = ended(started(*options, "--resume", "auto"))
    assert code == 0, said
    assert weights(tmp_path) == alone


def test_a_signal_to_the_launcher_saves_and_stops_all_ranks(alone: Any, tmp_path: Path) -> None:
    options = ["--run-dir", str(tmp_path), "--devices", "2"]
    run = started(*options, "--save-every", "1epochs", "--pause_ms", "300")
    wait_for(lambda: list((tmp_path / "ckpt").glob("step-*")))
    ranks = ranks_of(run)
    run.send_signal(signal.SIGTERM)
    code, said = ended(run)
    assert code == 128 + signal.SIGTERM, said
    assert not any(rank.is_running() for rank in ranks)
    code, said = ended(started(*options, "--resume", "auto"))
    assert code == 0, said
    assert weights(tmp_path) == alone


def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    run = started("--run-dir", str(tmp_path), "--devices", "2", "--pause_ms", "300")
    wait_for(lambda: list((tmp_path / "ckpt").glob("step-*")))
    ranks = ranks_of(run)
    assert len(ranks) == 2
    run.kill()
    ended(run)
    wait_for(lambda: not any(r.is_running() and r.status() != "zombie" for r in ranks))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--devices", "0"), "--devices 0 is not valid. Expected: 1 or more."),
        (("--devices", "2", "--device", "cuda:0"), "--device cuda:0 names one device"),
        (("--devices", "3", "--batch_size", "2"), "a step has 2 samples, fewer than the 3 ranks"),
    ],
)
def test_what_cannot_be_is_said_once(options: tuple[str, ...], words: str) -> None:
    code, said = ended(started(*options))
    assert code == 2
    assert said.count(words) == 1, said
