"""Scripts whose child processes train, or that close what is not theirs: hotlap says so."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.attach import rank_report
from hotlap.attach.children import _rank_given
from hotlap.attach.entry import Script
from hotlap.attach.heard_child import Child
from hotlap.attach.runner import Outcome
from hotlap.attach.runner import run as run_script
from hotlap.errors import TrialError
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import EXACT_PLAN
from hotlap.trial.channel import Channel

TRAIN = """
import os, sys
import torch

def train(rank=0, steps=3):
    assert not [name for name in os.environ if "HOTLAP" in name and name != "HOTLAP_DATA"]
    assert not any("hotlap" in entry for entry in os.environ.get("PYTHONPATH", "").split(":"))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    print(float(model.weight.sum()), flush=True)
"""
SPAWN = (
    TRAIN
    + """
if __name__ == "__main__":
    import torch.multiprocessing
    torch.multiprocessing.spawn(train, nprocs=1)
    sys.exit(int(sys.argv[1]))
"""
)
RANK = TRAIN + "train()\n"
BOTH = (
    TRAIN
    + """
if __name__ == "__main__":
    train()
    import torch.multiprocessing
    spawned = torch.multiprocessing.get_context("spawn")
    others = [spawned.Process(target=train) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
"""
)
GROUP = (
    TRAIN
    + """
import torch.distributed
torch.distributed.init_process_group("gloo")
train(steps=3 + torch.distributed.get_rank())
torch.distributed.destroy_process_group()
"""
)
START = "subprocess.run([sys.executable, '{}'], check=True)\n"
HELPER = "import os, subprocess, sys, torch\nos.environ['RANK'] = '3'\n" + START.format("train.py")
FORKS = """
import multiprocessing, subprocess
import torch

def show():
    text = subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()
    print(*(line for line in text if line.startswith(("PATH=", "HOTLAP_INSIDE", "PYTHONPATH"))))

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=show)
    child.start()
    child.join()
"""
WITH_WORKERS = (
    TRAIN
    + """
if __name__ == "__main__":
    import torch.multiprocessing
    from torch.utils.data import DataLoader
    loader = DataLoader(torch.arange(4), num_workers=1, multiprocessing_context="spawn")
    assert len(list(loader)) == 4
    train()
    torch.multiprocessing.spawn(train, nprocs=2)
"""
)
CLOSING = (
    """
import os, socket, sys
ours, theirs = socket.socketpair()
pair = [ours.detach(), theirs.detach()]
saved = [os.dup2(fd, 200 + at) for at, fd in enumerate(pair)]
os.closerange(3, 200)
# The script's own sockets under every number that was free: hotlap's is one of them.
mine = [os.dup(200) for _ in range(40)]
"""
    + TRAIN.replace("import os, sys\n", "import os, sys\n")
    + """
train(steps=60)
os.set_blocking(201, False)
try:
    print("READ", os.read(201, 100), flush=True)
except BlockingIOError:
    print("nothing was written", flush=True)
"""
)


def run(tmp_path: Path, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "hotlap", "run", *args],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )


@pytest.mark.slow
def test_a_process_that_a_script_spawns_trains_under_the_plan(tmp_path: Path) -> None:
    done = run(tmp_path, SPAWN, "train.py", "5")
    assert done.returncode == 5
    assert "optimizer: applied in 1 of 1 ranks\n" in done.stderr
    assert "the plan was not applied" not in done.stderr
    plain = subprocess.run(
        [sys.executable, "train.py", "5"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("outside", [None, "1"])
def test_both_ranks_of_a_launcher_attach_and_both_report(
    tmp_path: Path, outside: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cluster may set it for the launcher itself; its ranks are known by having another one.
    if outside is not None:
        monkeypatch.setenv("RANK", outside)
    (tmp_path / "train.py").write_text(GROUP)
    launcher = Script(
        module="torch.distributed.run",
        args=("--nproc_per_node", "2", "train.py"),
        cwd=str(tmp_path),
    )
    outcome = run_script(launcher, Plan())
    assert outcome.exit_code == 0
    told = sorted((child.rank, child.by, child.trains, child.steps) for child in outcome.children)
    assert told == [(0, "a launcher", True, 3), (1, "a launcher", True, 4)]


def test_a_forked_child_knows_nothing_of_hotlap(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKS)
    done = run(tmp_path, FORKS, "train.py")
    assert done.returncode == 0, done.stderr
    assert "HOTLAP_INSIDE" not in done.stdout and "site" not in done.stdout
    assert " PATH=" in f" {done.stdout}"


def test_where_nobody_can_be_heard_the_script_runs_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("hotlap.trial.exchange.folder", none)
    (tmp_path / "train.py").write_text("open('ran', 'w').close()")
    script = Script(path="train.py", cwd=str(tmp_path))
    outcome = run_script(script, Plan())
    assert outcome.exit_code == 0 and (tmp_path / "ran").exists()
    (line,) = outcome.problems(script)
    assert "no usable temporary directory" in line


def test_what_a_launcher_starts_beside_its_ranks_is_none_of_them(tmp_path: Path) -> None:
    # It leaves what it was told to the rank that it starts itself.
    (tmp_path / "train.py").write_text(TRAIN.replace("    assert not", "    #") + "train()\n")
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "torchrun").write_text("import subprocess, sys\n" + START.format("helper.py"))
    outcome = run_script(Script(path="torchrun", cwd=str(tmp_path)), Plan())
    assert outcome.exit_code == 0
    assert [(child.rank, child.steps) for child in outcome.children] == [(3, 3)]


@pytest.mark.slow
def test_spawned_ranks_attach_and_report_and_loader_workers_do_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_WORKERS)
    outcome = run_script(Script(path="train.py", cwd=str(tmp_path)), Plan())
    assert outcome.exit_code == 0 and outcome.steps == 3
    # A worker of a loader imports torch too, and is no rank.
    told = sorted((child.rank, child.steps) for child in outcome.children)
    assert told == [(0, 3), (1, 3)]


@pytest.mark.slow
def test_a_script_that_trains_in_its_own_process_too_is_told_of_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, BOTH, "train.py")
    assert "2 child processes train" in done.stderr and "they ran without" in done.stderr
    assert "ranks\n" not in done.stderr
    done = run(tmp_path, RANK, "train.py")
    # The negative control: nothing is said where nobody else trains.
    assert "process" not in done.stderr


def test_a_script_that_takes_no_step_is_told_so(tmp_path: Path) -> None:
    done = run(tmp_path, "import torch\n", "train.py")
    assert done.returncode == 0
    assert "took a step of a torch optimizer, so the plan was not applied" in done.stderr
    done = run(tmp_path, "import torch\nraise ValueError('mine')\n", "train.py")
    assert "took a step of a torch optimizer" not in done.stderr


def test_nothing_goes_into_a_descriptor_that_is_anothers() -> None:
    theirs, ours = socket.socketpair()
    lost: list[int] = []
    channel = Channel(ours.detach(), lost=lambda: lost.append(1))
    number = channel._socket.fileno()  # type: ignore[union-attr]
    assert channel.send("first")
    here, there = socket.socketpair()
    os.dup2(here.fileno(), number)
    assert not channel.send("second", text="x")
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        there.recv(100)
    assert lost == [1] and channel.receive() is None
    channel.close()
    # It is the script's now, and stays open.
    os.write(number, b"mine")
    assert there.recv(100) == b"mine"
    assert b"first" in theirs.recv(100) and theirs.recv(100) == b""
    os.close(number)
    for each in (theirs, here, there):
        each.close()


@pytest.mark.slow
def test_a_script_that_closes_every_descriptor_keeps_its_own(tmp_path: Path) -> None:
    done = run(tmp_path, CLOSING, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nothing was written\n")
    assert "it is not known which techniques took effect" in done.stderr
    script = Script(path="train.py", cwd=str(tmp_path))
    with Lab(script) as lab, pytest.raises(TrialError, match="closed hotlap's socket"):
        watch(lab, seconds=20, epochs=9)


LAUNCHES_ITSELF = (
    """
import os, subprocess, sys
if "LOCAL_RANK" not in os.environ:
    os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2")
    import torch
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
    # What a script starts beside its ranks is none of them.
    inherited = subprocess.check_output(["env"], env={**os.environ}, text=True)
    assert "HOTLAP" not in inherited.replace("HOTLAP_DATA", "")
"""
    + TRAIN
    + """
import torch.distributed
rank = int(os.environ["LOCAL_RANK"])
place = "file://" + os.path.abspath("met")
torch.distributed.init_process_group("gloo", place, rank=rank, world_size=2)
train(steps=3 + rank)
torch.distributed.destroy_process_group()
if rank == 0:
    sys.exit(other.wait())
"""
)


@pytest.mark.slow
def test_a_rank_that_a_script_starts_itself_is_attached_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAUNCHES_ITSELF)
    script = Script(path="train.py", cwd=str(tmp_path))
    outcome = run_script(script, EXACT_PLAN)
    assert outcome.exit_code == 0
    told = sorted((child.rank, child.by, child.steps) for child in outcome.children)
    assert told == [(0, "the script", 3), (1, "subprocess.Popen", 4)]
    assert "optimizer: applied in 2 of 2 ranks" in rank_report.lines(outcome.children, 0)
    assert outcome.problems(script) == []


def test_an_environment_may_hold_bytes() -> None:
    assert _rank_given({"RANK": b"1"}) is None  # type: ignore[dict-item]
    assert _rank_given({"RANK": "1"}) == 1


def test_what_a_rank_says_of_its_records_is_heard_beside_a_launcher() -> None:
    outcome, rank = Outcome(), Child("a launcher", 0)
    assert outcome.recorded_by_all is None
    outcome.recorded = {"problems": ["of the launcher"]}
    outcome.children.append(rank)
    said = {"problems": ["losses after step 3 are not recorded", "of the launcher"]}
    rank.hear({"kind": "report", "steps": 3, "techniques": [], "recorded": said})
    expected = ["of the launcher", "losses after step 3 are not recorded"]
    assert outcome.recorded_by_all == {"problems": expected}
