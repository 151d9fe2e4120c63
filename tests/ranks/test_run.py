"""`hotlap run` with unedited scripts whose ranks torchrun starts, or that spawn them themselves."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.attach import rank_report
from hotlap.attach.entry import Script
from hotlap.attach.runner import run as run_script
from hotlap.plan import Plan

Call = Callable[..., subprocess.CompletedProcess[str]]
DDP = str(Path(__file__).parent / "ddp.py")
TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2")
ONE_COPY = "; one copy for 2 ranks" if hasattr(os, "memfd_create") else ""
MODEL_PLAN = Plan({"channels_last": {}, "optimizer": {"implementation": "fused"}})


def plainly(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a script without hotlap, which keeps gloo's threads from aborting it at its end."""
    ended = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=240, check=False
    )
    is_aborted = "terminate called without an active exception" in ended.stderr
    return plainly(*args) if is_aborted else ended


def plain_torchrun(*args: str) -> subprocess.CompletedProcess[str]:
    return plainly("-m", "torch.distributed.run", *TORCHRUN[1:], *args)


def lines(text: str) -> list[str]:
    """Return what the ranks printed; which one is first is chance."""
    return sorted(text.splitlines())


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


@pytest.fixture(scope="module")
def plain() -> subprocess.CompletedProcess[str]:
    """Return what two ranks print without hotlap."""
    ended = plain_torchrun(DDP)
    assert ended.returncode == 0 and len(lines(ended.stdout)) == 10, ended.stderr
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("given", [TORCHRUN, ("--", *TORCHRUN), ("-m", "torch.distributed.run",
                                   *TORCHRUN[1:])], ids=["word", "dashes", "module"])  # fmt: skip
def test_ranks_of_torchrun_train_under_the_plan_and_learn_the_same(
    given: tuple[str, ...], plain: subprocess.CompletedProcess[str], hotlap: Call
) -> None:
    ended = hotlap("run", *given, DDP, timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    assert lines(ended.stdout) == lines(plain.stdout)
    assert f"hotlap: resident: applied in 2 of 2 ranks{ONE_COPY}\n" in ended.stderr
    assert "hotlap: optimizer: applied in 2 of 2 ranks\n" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_ranks_that_a_script_spawns_train_under_the_plan_and_learn_the_same(
    workers: str, hotlap: Call
) -> None:
    args = (DDP, "--spawn", "2", "--workers", workers)
    plain = plainly(*args, "--port", free_port())
    ended = hotlap("run", *args, "--port", free_port(), timeout_s=240)
    assert (plain.returncode, ended.returncode) == (0, 0), ended.stderr
    assert len(lines(plain.stdout)) == 10
    assert lines(ended.stdout) == lines(plain.stdout)
    assert "hotlap: optimizer: applied in 2 of 2 ranks\n" in ended.stderr
    # Two halves are a whole epoch, so that the next one needs no workers.
    assert f"hotlap: resident: applied in 2 of 2 ranks{ONE_COPY}\n" in ended.stderr
    # Neither loader workers nor the resource tracker are taken for ranks.
    assert "child process" not in ended.stderr


@pytest.mark.slow
def test_what_one_rank_alone_refuses_is_named(hotlap: Call) -> None:
    ended = hotlap("run", *TORCHRUN, DDP, "--own_foreach", "1", timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    assert "hotlap: optimizer: applied in 1 of 2 ranks; rank 1: refused, " in ended.stderr
    assert "hotlap: resident: applied in 2 of 2 ranks" in ended.stderr


@pytest.mark.slow
def test_what_changes_the_model_or_rounds_is_refused_on_ranks(tmp_path: Path) -> None:
    launcher = Script(
        module="torch.distributed.run",
        args=(*TORCHRUN[1:], DDP, "--epochs", "1"),
        cwd=str(tmp_path),
    )
    outcome = run_script(launcher, MODEL_PLAN)
    assert outcome.exit_code == 0
    said = rank_report.lines(outcome.children, 0)
    assert said[0].startswith("channels_last: refused in 2 of 2 ranks: ")
    assert said[1].startswith("optimizer: refused in 2 of 2 ranks: ")


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_as_without_hotlap(hotlap: Call) -> None:
    args = (DDP, "--dies", "1")
    plain, ended = plain_torchrun(*args), hotlap("run", *TORCHRUN, *args, timeout_s=240)
    assert ended.returncode == plain.returncode == 1
    assert "this rank was told to die" in ended.stderr
    assert "no rank reports" not in ended.stderr


@pytest.mark.slow
def test_ranks_whose_data_sets_differ_read_each_their_own(hotlap: Call) -> None:
    args = (DDP, "--own_data", "--epochs", "9")
    plain, ended = plain_torchrun(*args), hotlap("run", *TORCHRUN, *args, timeout_s=240)
    assert (plain.returncode, ended.returncode) == (0, 0), ended.stderr
    assert lines(ended.stdout) == lines(plain.stdout)
    assert "hotlap: resident: applied in 2 of 2 ranks; rank 0: a copy of its own" in ended.stderr


def holders(temporary: Path) -> list[int]:
    """Return the processes of a run that hold samples, by the folder for temporary files."""
    found, mark = [], f"TMPDIR={temporary}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_own = mark in (folder / "environ").read_bytes().split(b"\0")
            if is_own and "memfd:hotlap-rows" in (folder / "maps").read_text():
                found.append(int(folder.name))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("all_of_them", [False, True])
def test_ranks_that_are_killed_leave_nothing_behind(all_of_them: bool, tmp_path: Path) -> None:
    if not ONE_COPY:
        pytest.skip("this system has no memory without a name")
    command = [sys.executable, "-m", "hotlap", "run", *TORCHRUN, DDP, "--epochs", "100000"]
    before = set(os.listdir("/dev/shm"))
    run = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    while len(ranks := holders(tmp_path)) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(ranks) == 2 and run.poll() is None
    for rank in ranks if all_of_them else ranks[1:]:
        os.kill(rank, signal.SIGKILL)
    assert run.wait(60) == 1
    while holders(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert holders(tmp_path) == []
    assert not list(tmp_path.glob("hotlap-*"))
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "hotlap" in name]


@pytest.mark.slow
def test_a_backend_without_its_devices_is_explained(hotlap: Call) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the devices")
    ended = hotlap("run", *TORCHRUN, DDP, "--backend", "nccl", timeout_s=240)
    assert ended.returncode == plain_torchrun(DDP, "--backend", "nccl").returncode == 1
    assert "hotlap: backend_missing: " in ended.stderr
    spawned = hotlap(
        "run", DDP, "--backend", "nccl", "--spawn", "2", "--port", free_port(), timeout_s=240
    )
    assert spawned.returncode == 1
    assert spawned.stderr.count("hotlap: backend_missing: ") == 1


@pytest.mark.slow
def test_ranks_without_a_step_are_not_said_to_have_a_plan(hotlap: Call, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("import torch\n")
    ended = hotlap("run", *TORCHRUN, "idle.py", timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    assert "took a step of a torch optimizer, so the plan was not applied" in ended.stderr
    assert "ranks\n" not in ended.stderr


def test_a_script_that_torchrun_would_not_find_is_named(hotlap: Call) -> None:
    ended = hotlap("run", *TORCHRUN, "nowhere.py", timeout_s=240)
    assert ended.returncode == 2
    assert "'nowhere.py' was not found" in ended.stderr
