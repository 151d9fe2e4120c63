"""Trials do not meet each other, nor what runs beside them: ports, sockets, System V's memory."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab import listening
from hotlap.lab.observing import watch
from hotlap.lab.scratch import Scratch
from hotlap.lab.trial import Lab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="views of the files need Linux")

SERVE = """
import socket, sys
port = int(sys.argv[1])
with socket.create_server(("127.0.0.1", port)) as server:
    with socket.create_connection(("127.0.0.1", port)) as there:
        here, _ = server.accept()
        there.sendall(b"mine")
        print(here.recv(4).decode())
hidden = socket.socket(socket.AF_UNIX)
hidden.bind("\\0" + "hotlap-test-" + str(port))
hidden.listen()
"""
SHARE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
number = libc.shmget(0, 4096, 0o1600)
assert number >= 0
print(number)
"""
TRAINING = """
import socket, sys, time
import torch
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(32, 4))
for epoch in range(400):
    for (inputs,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.002)
"""
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=0, world_size=1)
given = torch.ones(3)
dist.all_reduce(given)
assert given.sum() == 3
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port, and an abstract socket of its name, that this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as other:
        number = server.getsockname()[1]
        other.bind(f"\0hotlap-test-{number}")
        other.listen()
        yield number


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    with Scratch(tmp_path) as made:
        if (why := made.why_no_network()) is not None:
            pytest.skip(f"no network of its own can be had here: {why}")
        yield made


def said(scratch: Scratch, script: str, *args: object, own_network: bool = False) -> str:
    process = scratch.popen(
        [sys.executable, "-c", script, *map(str, args)],
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        own_network=own_network,
    )
    return process.communicate(timeout=60)[0].decode()


def test_in_a_network_of_its_own_a_taken_port_and_name_are_free(
    scratch: Scratch, port: int
) -> None:
    assert said(scratch, SERVE, port, own_network=True) == "mine\n"
    # The negative control: without one they are not.
    assert "Address already in use" in said(scratch, SERVE, port)


def test_nothing_outside_is_reached_from_a_network_of_its_own(scratch: Scratch, port: int) -> None:
    reach = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
    assert said(scratch, reach, port) == ""
    assert "Connection refused" in said(scratch, reach, port, own_network=True)


@pytest.mark.skipif(not Path("/proc/sysvipc/shm").exists(), reason="no System V shared memory")
def test_shared_memory_of_a_trial_is_gone_with_it(scratch: Scratch) -> None:
    segments = Path("/proc/sysvipc/shm")
    before = {line.split()[1] for line in segments.read_text().splitlines()}
    assert said(scratch, SHARE).strip().isdecimal()
    assert {line.split()[1] for line in segments.read_text().splitlines()} == before
    # The negative control: a process without a view leaves its own.
    made = subprocess.run([sys.executable, "-c", SHARE], capture_output=True, text=True).stdout
    try:
        assert made.strip() in {line.split()[1] for line in segments.read_text().splitlines()}
    finally:
        drop = "import ctypes, sys; ctypes.CDLL(None).shmctl(int(sys.argv[1]), 0, None)"
        subprocess.run([sys.executable, "-c", drop, made.strip()], check=True)


def test_what_a_process_listens_on_is_seen() -> None:
    mine = [os.getpid()]
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening.find_listening_address(mine) == f"TCP port {server.getsockname()[1]}"
    with socket.socket(socket.AF_UNIX) as named:
        named.bind("\0hotlap-test-name")
        named.listen()
        assert listening.find_listening_address(mine) == "the abstract socket @hotlap-test-name"
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)):
        assert listening.find_listening_address(mine) is None
    assert listening.find_listening_address([2**22 + 1]) is None


def train(tmp_path: Path, text: str, port: int) -> Script:
    (tmp_path / "train.py").write_text(text)
    return Script(path="train.py", args=(str(port),), cwd=str(tmp_path))


@pytest.mark.usefixtures("scratch")
@pytest.mark.slow
def test_a_script_on_a_fixed_port_is_watched_and_raced(tmp_path: Path, port: int) -> None:
    with Lab(train(tmp_path, TRAINING, port)) as lab:
        seen = watch(lab, seconds=2, epochs=9)
        assert lab.listens is not None and len(seen.trace.steps) > 10
        arms = [lab.start("race") for _ in range(2)]
        for arm in arms:
            arm.message(["ready"], 60)
        crashing = lab.start("race")
        crashing._printed._last += b"Network is unreachable"
        assert "a separate network" in str(crashing._error("ended", "crashed"))


@pytest.mark.slow
@pytest.mark.usefixtures("scratch")
def test_a_process_group_of_one_is_watched_and_raced(tmp_path: Path, port: int) -> None:
    listen = 'server = socket.create_server(("127.0.0.1", int(sys.argv[1])))'
    assert listen in TRAINING
    with Lab(train(tmp_path, TRAINING.replace(listen, GLOO), port)) as lab:
        watch(lab, seconds=2, epochs=9)
        for arm in [lab.start("race") for _ in range(2)]:
            arm.message(["ready"], 60)


@pytest.mark.slow
def test_where_no_network_can_be_had_the_scripts_own_error_is_shown(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scratch, "why_no_network", lambda self: "not here")
    script = train(tmp_path, TRAINING, port)
    with Lab(script) as lab, pytest.raises(TrialError, match="Address already in use"):
        watch(lab, seconds=2, epochs=9)


def test_a_trial_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        made: list[subprocess.Popen[bytes]] = []
        thread = threading.Thread(
            target=lambda: made.append(
                scratch.popen(["/bin/sleep", "0.5"], env=os.environ, **streams)
            )
        )
        thread.start()
        thread.join(timeout=20)
        assert made[0].wait(timeout=20) == 0
