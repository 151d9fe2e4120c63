"""Finds the addresses that a script listens on: two trials at once would want the same port.

Source: /proc/PID/fd, /proc/PID/net/tcp and /proc/PID/net/unix in proc(5); autobind in unix(7).
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

LOOPBACK_ONLY = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    # torchrun's: it would tell its ranks the machine's own name.
    "PET_LOCAL_ADDR": "127.0.0.1",
}
"""Environment in a network of its own, where the script's own choice is not there."""
_LISTENS = "0A"
"""TCP_LISTEN, as /proc writes it."""
_AUTOBIND = re.compile(r"@[0-9a-f]{5}")
"""An abstract address that the kernel chose, another one each time."""
_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]|errno: 98\b")


def find_listening_address(pids: Iterable[int]) -> str | None:
    """Return what one of the processes listens on, in words; None if none listens."""
    for pid in pids:
        # It may end at any moment, or may not be looked into.
        with contextlib.suppress(OSError):
            mine = _sockets(pid)
            for words in _addresses(pid, mine) if mine else ():
                return words
    return None


def is_in_use(said: str) -> bool:
    """Return True if a script said that somebody else has the address it wanted."""
    return _IN_USE.search(said) is not None


def _sockets(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open."""
    numbers = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                numbers.add(target[8:-1])
    return numbers


def _addresses(pid: int, inodes: set[str]) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        for words in _rows(f"/proc/{pid}/net/{name}"):
            if words[3] == _LISTENS and words[9] in inodes:
                yield f"TCP port {int(words[1].rpartition(':')[2], 16)}"
    for words in _rows(f"/proc/{pid}/net/unix"):
        name = words[7] if len(words) > 7 else ""
        if words[6] in inodes and name.startswith("@") and not _AUTOBIND.fullmatch(name):
            yield f"the abstract socket {name}"


def _rows(path: str) -> list[list[str]]:
    if not os.path.exists(path):
        return []
    with open(path, errors="replace") as stream:
        return [line.split() for line in stream.readlines()[1:]]
