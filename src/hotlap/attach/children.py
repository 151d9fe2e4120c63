"""Child processes that train: hotlap is not in them, and says so.

The script's own process is attached to. A child that `torch.multiprocessing` or a launcher starts
anew finds, in its environment, an address; with its first optimizer step it says that it trains.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INSIDE = "HOTLAP_INSIDE"
"""Holds the address; in the environment of what is started during a run."""
_LAUNCHERS = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
)
_LAUNCHER_SCRIPTS = frozenset(("torchrun", "accelerate"))
_SITE = str(Path(__file__).parent / "site")


class Listening:
    """Hears of children that train. Nothing is left behind: the address is not a file."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.address: str | None = None
        """None where the system has no abstract sockets; children are then not heard of."""
        if sys.platform == "linux":
            self.address = f"hotlap-{os.urandom(16).hex()}"
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind("\0" + self.address)
            self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """Return what started each child that trained, and stop listening."""
        found: dict[int, str] = {}
        if self._socket is not None:
            with self._socket, contextlib.suppress(BlockingIOError):
                while True:
                    message = json.loads(self._socket.recv(1 << 12))
                    found[message["pid"]] = message["by"]
        return list(found.values())


def is_launcher() -> bool:
    """Return True if this process is a program whose only work is to start others."""
    words = sys.orig_argv[1:]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1] in _LAUNCHERS
    return any(os.path.basename(word) in _LAUNCHER_SCRIPTS for word in words[:1])


def pass_on_by_launcher(address: str) -> None:
    """Let what this process starts find the address, if it is a launcher: it copies its own."""
    if is_launcher():
        os.environ.update(_environment(address))


def pass_on(address: str) -> None:
    """Let processes that `multiprocessing` starts find the address; the script does not see it."""
    from multiprocessing.process import BaseProcess

    start = BaseProcess.start

    def starting(self: Any) -> None:
        with _in_environment(_environment(address)):
            start(self)

    BaseProcess.start = starting


def tell(address: str) -> None:
    """In a child: say that it trains, once it takes its first optimizer step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    pid = os.getpid()
    by = "torch.multiprocessing" if "--multiprocessing-fork" in sys.orig_argv else "a launcher"

    def first_step(*_: Any) -> None:
        handle.remove()
        with contextlib.suppress(OSError), _datagrams() as out:
            # Nobody may listen any more, and this is no reason to disturb a script.
            out.sendto(json.dumps({"pid": pid, "by": by}).encode(), "\0" + address)

    handle = register_optimizer_step_post_hook(first_step)


def _datagrams() -> socket.socket:
    out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    out.setblocking(False)
    return out


def _environment(address: str) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    return {
        INSIDE: address,
        "PYTHONPATH": os.pathsep.join([_SITE, *([before] if before else [])]),
        **({} if before is None else {"HOTLAP_PYTHONPATH": before}),
    }


@contextlib.contextmanager
def _in_environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for what is started meanwhile; `os.environ` does not show them."""
    for name, value in values.items():
        os.putenv(name, value)
    try:
        yield
    finally:
        for name in values:
            if name in os.environ:
                os.putenv(name, os.environ[name])
            else:
                os.unsetenv(name)


def problem(steps: int | None, exit_code: int, heard: list[str]) -> str | None:
    """Return why a plan was applied to nothing, or not to all that trained; None if it was.

    Args:
        steps: optimizer steps of the script's own process, None if it did not say.
        exit_code: the script's.
        heard: see `Listening.heard`.
    """
    if heard:
        by = " and ".join(sorted(set(heard)))
        many = f"{len(heard)} child processes train" if len(heard) > 1 else "a child process trains"
        rest = "the plan was applied to nothing" if not steps else "they ran plain"
        return (
            f"{many}, started by {by}: {rest}, because hotlap gets only into the script's own "
            "process. Launchers and child processes are not supported yet"
        )
    if steps == 0 and exit_code == 0:
        return (
            "no step of a torch optimizer was taken in the script's own process, the only one that "
            "hotlap gets into: the plan was applied to nothing. If the script starts other "
            "processes that train, these ran plain"
        )
    return None
