"""A script gets each signal as often as it would without hotlap."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotlap.attach import signal_forwarding

SCRIPT = """
import os, signal, sys, time

out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
told = []

def note(number, frame):
    told.append(number)
    os.write(out, signal.Signals(number).name.encode() + b"\\n")

for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH"):
    signal.signal(getattr(signal, name), note)
os.write(out, b"begun %d\\n" % os.getpid())
while signal.SIGTERM not in told:
    time.sleep(0.02)
# What a script does that saves before it leaves.
until = time.monotonic() + 1
while time.monotonic() < until:
    time.sleep(0.02)
    if told.count(signal.SIGTERM) > 1:
        os.write(out, b"cut off\\n")
        os._exit(1)
os.write(out, b"saved\\n")
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "saves.py"
    path.write_text(SCRIPT)
    return path


def command(script: Path) -> list[str]:
    told = script.with_name("told")
    return [sys.executable, "-m", "hotlap", "run", str(script), str(told)]


def told(script: Path) -> list[str]:
    path = script.with_name("told")
    return path.read_text().splitlines()[1:] if path.exists() else []


def begun(script: Path) -> int:
    """Wait until the script runs, and return its process."""
    until = time.monotonic() + 60
    path = script.with_name("told")
    while time.monotonic() < until:
        if path.exists() and "\n" in path.read_text():
            return int(path.read_text().split()[1])
        time.sleep(0.05)
    raise AssertionError("the script never began")


def settled(script: Path, count: int) -> list[str]:
    """Return what the script was told once there is that much of it and no more comes."""
    until = time.monotonic() + 20
    while len(told(script)) < count and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)
    return told(script)


@pytest.fixture
def process(script: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Like a job of CI or of a scheduler: a group of its own, and no terminal."""
    with subprocess.Popen(
        command(script),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_as_in_front,
    ) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)


def _as_in_front() -> None:
    # What a shell starts behind itself ignores Ctrl-C, and so does what that starts; as `nohup`
    # ignores the hang-up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_each_signal_arrives_once_whomever_it_was_sent_to(
    script: Path, process: "subprocess.Popen[bytes]"
) -> None:
    begun(script)
    count = 0
    senders: tuple[Callable[[int, int], None], ...] = (os.kill, os.killpg)
    for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGWINCH", "SIGCONT"):
        for send in senders:
            send(process.pid, getattr(signal, name))
            count += 1
            assert settled(script, count)[count - 1 :] == [name], send
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 7
    assert told(script)[count:] == ["SIGTERM", "saved"]


@pytest.mark.slow
def test_a_signal_to_the_process_alone_reaches_the_script(
    script: Path, process: "subprocess.Popen[bytes]"
) -> None:
    begun(script)
    process.terminate()
    assert process.wait(30) == 7
    assert told(script) == ["SIGTERM", "saved"]


@pytest.mark.slow
def test_timeout_which_sends_to_process_and_group_cuts_no_save_off(script: Path) -> None:
    timeout = shutil.which("timeout")
    if timeout is None:
        pytest.skip("needs coreutils")
    with subprocess.Popen(
        [timeout, "100", *command(script)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        begun(script)
        # It hands this on as it does its own when the time is over.
        process.terminate()
        process.wait(30)
    assert [line for line in told(script) if line != "SIGCONT"] == ["SIGTERM", "saved"]


def test_the_script_does_not_outlive_hotlap_nor_the_witness(
    script: Path, process: "subprocess.Popen[bytes]"
) -> None:
    child = begun(script)
    process.kill()
    process.wait(10)
    until = time.monotonic() + 10
    while _group(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _group(process.pid), child


def _group(group: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, theirs, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(theirs) == group and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_witness_closes_what_is_open_however_much_could_be(
    is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closerange(first: int, last: int) -> None:
        # As where Python closes one after another.
        assert last - first < 1 << 20, "it would count to a billion"

    def listdir(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "closerange", closerange)
    monkeypatch.setattr(os, "sysconf", lambda _: 1 << 30)
    if not is_listed:
        monkeypatch.setattr(os, "listdir", listdir)
    read, write = os.pipe()
    witness = signal_forwarding._Witness([signal.SIGUSR2])
    try:
        os.close(write)
        os.kill(witness._pid, signal.SIGUSR2)
        assert witness.take_seen() == {signal.SIGUSR2}
        # Nobody else holds the other end.
        assert os.read(read, 1) == b""
    finally:
        os.close(read)
        witness.end()


SHELL = """
import os, signal, subprocess, sys

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, job.pid)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    print("stopped", flush=True)
    os.killpg(job.pid, signal.SIGCONT)
print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_a_terminals_keys_reach_the_script_once_and_a_shell_sees_it_stop(script: Path) -> None:
    shell, terminal = pty.fork()
    if shell == 0:
        os.execv(sys.executable, [sys.executable, "-c", SHELL, *command(script)])
    try:
        pid = begun(script)
        os.write(terminal, b"\x03")
        assert settled(script, 1) == ["SIGINT"]
        os.write(terminal, b"\x1a")
        # Both were stopped, and went on together.
        assert "SIGCONT" in settled(script, 2)
        os.kill(pid, signal.SIGTERM)
        text = b""
        while re.search(rb"ended \d+", text) is None:
            text += os.read(terminal, 4096)
        assert b"stopped" in text and b"ended 7" in text
    finally:
        os.close(terminal)
        os.waitpid(shell, 0)
