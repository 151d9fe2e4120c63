"""One run at a time saves into a folder; the lock of a dead one is taken over."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.checkpoint import lock as locking
from hotlap.checkpoint.lock import NAME, Lock
from hotlap.checkpoint.owner import Owner, boot, start_time_of
from hotlap.errors import UsageError
from tests.engine.test_saving import numbers, short

HOLDS = """
import os, sys, time
from pathlib import Path
from hotlap.checkpoint.lock import Lock

Lock(Path(sys.argv[1])).take()
if os.fork() == 0:
    time.sleep(30)  # a worker that outlives its parent
    os._exit(0)
print("held", flush=True)
time.sleep(30)
"""


def plant(root: Path, **changes: Any) -> Owner:
    """Leave a lock as one whose owner has no kernel's lock any more."""
    owner = Owner.of_this_process().to_json() | changes
    (root / NAME).write_text(json.dumps(owner))
    return Owner(**owner)


def taken(root: Path) -> None:
    lock = Lock(root)
    lock.take()
    assert json.loads((root / NAME).read_text())["pid"] == os.getpid()
    lock.release()
    assert not (root / NAME).exists()


def test_a_second_run_is_told_who_saves_there_and_a_killed_ones_lock_is_taken_over(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run" / "ckpt"
    root.mkdir(parents=True)
    command = [sys.executable, "-c", HOLDS, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"held\n"
            words = rf"process {other.pid} on {re.escape(socket.gethostname())}, started \d{{4}}-"
            with pytest.raises(UsageError, match=words):
                hotlap.train(short(steps=2), run_dir=tmp_path / "run", resume="auto")
            assert numbers(tmp_path / "run") == []
            other.kill()
            other.wait()
            # Its child lives, and holds no lock.
            hotlap.train(short(steps=2), run_dir=tmp_path / "run", resume="auto")
        finally:
            os.killpg(other.pid, signal.SIGKILL)
    assert numbers(tmp_path / "run") == [2]
    assert not (root / NAME).exists()


def test_two_runs_of_one_process_do_not_share_a_folder(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    lock.take()
    with pytest.raises(UsageError, match=f"process {os.getpid()} on"):
        Lock(tmp_path).take()
    lock.take()
    lock.release()
    taken(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 2**30},
        {"start": 1},
        {"boot": "another", "pid": os.getppid(), "start": start_time_of(os.getppid())},
        {"host": "a container of this machine", "start": 1},
    ],
)
def test_the_lock_of_a_dead_process_is_taken_over(changes: dict[str, Any], tmp_path: Path) -> None:
    plant(tmp_path, **changes)
    taken(tmp_path)


def test_the_lock_of_a_living_process_is_respected_where_the_kernels_is_lost(
    tmp_path: Path,
) -> None:
    owner = plant(tmp_path, pid=os.getppid(), start=start_time_of(os.getppid()))
    with pytest.raises(UsageError, match=re.escape(str(owner))):
        Lock(tmp_path).take()


def test_another_machines_lock_is_respected_and_one_is_told_what_to_do(tmp_path: Path) -> None:
    if not boot():
        pytest.skip("this machine does not tell its starts apart")
    plant(tmp_path, host="elsewhere", boot="another", pid=7)
    with pytest.raises(UsageError, match="process 7 on elsewhere") as refused:
        Lock(tmp_path).take()
    assert f"If it has ended, delete '{tmp_path / NAME}'" in str(refused.value)
    (tmp_path / NAME).unlink()
    taken(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}', "[" * 5000, "null"])
def test_what_is_no_lock_is_replaced(content: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(content)
    taken(tmp_path)


def test_a_fifo_in_its_place_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(UsageError, match="not a regular file"):
        Lock(tmp_path).take()


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({"namespace": 1}, False),
        ({"host": "a container of this machine"}, False),
        # A child of a dead process of this container holds the kernel's lock.
        ({}, True),
        ({"namespace": 0}, True),
    ],
)
def test_a_lock_that_is_held_is_taken_over_only_from_a_process_that_would_be_seen(
    changes: dict[str, Any], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "_PATIENCE_S", 0.0)
    plant(tmp_path, pid=2**30, **changes)
    with (tmp_path / NAME).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if is_taken:
            taken(tmp_path)
            return
        with pytest.raises(UsageError, match=f"process {2**30} on .* saves into it"):
            Lock(tmp_path).take()
        assert os.fstat(held.fileno()).st_ino == (tmp_path / NAME).stat().st_ino


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [({"namespace": 1}, False), ({"namespace": 1, "boot": "another"}, True), ({}, True)],
)
def test_without_the_kernels_lock_another_containers_is_respected(
    changes: dict[str, Any], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lock, "_lock", lambda *_: None)
    plant(tmp_path, pid=2**30, **changes)
    if is_taken:
        taken(tmp_path)
        return
    with pytest.raises(UsageError, match="or in another container") as refused:
        Lock(tmp_path).take()
    assert f"If it has ended, delete '{tmp_path / NAME}'" in str(refused.value)
