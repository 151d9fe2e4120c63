"""A trial that is paused computes nothing, wherever its processes have gone; and none is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hotlap.attach.entry import Script
from hotlap.lab import family
from hotlap.lab.scratch import Protection
from hotlap.lab.trial import Lab, Trial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="views of the files need Linux")
COPY = Protection("copy", (), "forced")
PROTECTIONS = pytest.mark.parametrize("protection", [None, COPY], ids=["view", "copy"])

BURNING = """
import os, sys, time
def burn():
    while True:
        sum(range(10_000))
os.nice(5)
if os.fork() == 0:          # a child in a session of its own
    os.setsid()
    burn()
if os.fork() == 0:          # a grandchild that nobody waits for
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        burn()
    os._exit(0)
os.wait()
print("burning", flush=True)
burn()
"""
FORKING = """
import os, time
print("burning", flush=True)
while True:                 # children that are there for a moment, each in a session of its own
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sum(range(2_000))
        os._exit(0)
    os.wait()
"""


def started(tmp_path: Path, text: str, protection: Protection | None) -> Iterator[Trial]:
    (tmp_path / "train.py").write_text(text)
    with Lab(Script(path="train.py", cwd=str(tmp_path)), protection=protection) as lab:
        trial = lab.start("race", started=time.monotonic())
        deadline = time.monotonic() + 30
        while "burning" not in trial.output:
            assert time.monotonic() < deadline, trial.output
            time.sleep(0.01)
        yield trial


def of(trial: Trial) -> list[psutil.Process]:
    process = psutil.Process(trial._process.pid)
    return [process, *process.children(recursive=True)]


def spent_s(trial: Trial) -> dict[int, float]:
    found = {}
    for each in of(trial):
        times = each.cpu_times()
        found[each.pid] = times.user + times.system
    return found


@PROTECTIONS
def test_a_paused_trial_computes_nothing_in_any_session(
    tmp_path: Path, protection: Protection | None
) -> None:
    for trial in started(tmp_path, BURNING, protection):
        everyone = of(trial)
        assert len({os.getsid(each.pid) for each in everyone}) >= 3
        trial.pause()
        before = spent_s(trial)
        time.sleep(0.4)
        assert spent_s(trial) == before
        trial.resume()
        time.sleep(0.6)
        after = spent_s(trial)
        # The negative control: three processes compute, and it shows.
        assert sum(after[pid] > before[pid] for pid in before) >= 3
        trial.pause()
        trial.kill()
        gone(everyone)


@PROTECTIONS
def test_pausing_goes_on_until_no_new_process_appears(
    tmp_path: Path, protection: Protection | None
) -> None:
    for trial in started(tmp_path, FORKING, protection):
        for _ in range(5):
            trial.pause()
            before = spent_s(trial)
            time.sleep(0.05)
            assert spent_s(trial) == before
            trial.resume()


SHARING = """
import os, sys, time
held = b"x" * (64 * 2**20)
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


def test_memory_that_processes_share_is_counted_once_before_it_is_too_much() -> None:
    with subprocess.Popen([sys.executable, "-c", SHARING], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [parent.pid, int(parent.stdout.readline())]
        try:
            twice = family.held_bytes(pids, lambda held: held)
            once = family.held_bytes(pids, lambda held: held - 1)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    assert twice > 128 * 2**20
    # The negative control: what is held is counted, once.
    assert 64 * 2**20 < once < twice - 48 * 2**20


def test_what_cannot_be_paused_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(family, "_STOP_S", 0.2)
    monkeypatch.setattr(family, "_signal", lambda pid, number: None)
    from hotlap.errors import TrialError

    for trial in started(tmp_path, BURNING, None):
        with pytest.raises(TrialError, match="could not be paused"):
            trial.pause()


def gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=10)
    assert [each for each in left if each.status() != psutil.STATUS_ZOMBIE] == []
