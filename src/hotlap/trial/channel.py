"""`Channel`: one end of the JSON-lines connection between hotlap and a measured process."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

_LONGEST = 100
"""Bytes of a path that a socket's address surely has room for: 104 on macOS, 108 on Linux."""


@contextlib.contextmanager
def shorten_path(path: str) -> Iterator[str]:
    """Give a name of a socket's path that an address has room for, while entered.

    Raises:
        OSError: the path is too long, and this system knows no shorter one.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    if sys.platform != "linux":
        raise OSError(
            f"{path} is too long for a socket. Expected: at most {_LONGEST} bytes. Set TMPDIR to a "
            "shorter path"
        )
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class Channel:
    """One end of a connection. Sending never raises: a script must outlive whoever watches it.

    A script may close every descriptor (`os.closerange`, as daemons do) and open its own under the
    same number; nothing is written into that, nor read from it, nor is it closed.

    Args:
        fd: descriptor of the socket, None where nobody listens.
        lost: called when the descriptor turns out to be another's.
    """

    def __init__(self, fd: int | None, lost: Callable[[], None] | None = None) -> None:
        self._identity = None if fd is None else _identity(fd)
        self._socket = None if fd is None else socket.socket(fileno=fd)
        self._lost = lost
        self._buffer = b""

    @classmethod
    def connect(cls, address: str | None, lost: Callable[[], None] | None = None) -> "Channel":
        """Return a process's own end.

        Args:
            address: where somebody listens, None where nobody does.
            lost: see above.
        """
        if address is None:
            return cls(None, lost)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A script must not wait for one who does not listen.
            connection.setblocking(False)
            with shorten_path(address) as name:
                connection.connect(name)
            connection.setblocking(True)
        except OSError:
            # Whoever listened is gone.
            connection.close()
            return cls(None, lost)
        return cls(connection.detach(), lost)

    def send(self, kind: str, **values: Any) -> bool:
        """Send one message; return False if nobody listens any more."""
        if not self._is_open():
            return False
        assert self._socket is not None
        try:
            self._socket.sendall(json.dumps({"kind": kind, **values}).encode() + b"\n")
        except OSError:
            self.close()
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, None if the other end is closed.

        Raises:
            TimeoutError: nothing came in time.
        """
        if not self._is_open():
            return None
        assert self._socket is not None
        self._socket.settimeout(timeout_s)
        while (message := self.pop_buffered_message()) is None:
            if not self.fill():
                return None
        return message

    def pop_buffered_message(self) -> dict[str, Any] | None:
        """Return the next message of those that have been read already, None if there is none."""
        if b"\n" not in self._buffer:
            return None
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def fill(self) -> bool:
        """Read what has come; return False if the other end is closed.

        Raises:
            TimeoutError: nothing came in time.
        """
        assert self._socket is not None
        try:
            chunk = self._socket.recv(1 << 16)
        except ConnectionError:
            chunk = b""
        self._buffer += chunk
        return bool(chunk)

    def close(self) -> None:
        """Close the socket, if it is still there."""
        if self._socket is not None and not self._let_go():
            self._socket.close()
        self._socket = None

    def _is_open(self) -> bool:
        if self._socket is None:
            return False
        if self._let_go():
            self._socket = None
            if self._lost is not None:
                self._lost()
            return False
        return True

    def _let_go(self) -> bool:
        """Give the descriptor up if it is not the socket any more; return True if so."""
        assert self._socket is not None
        if self._socket.fileno() < 0 or _identity(self._socket.fileno()) == self._identity:
            return False
        self._socket.detach()
        return True


def _identity(fd: int) -> tuple[int, int] | None:
    """Return what tells an open file from every other, None if the descriptor is closed."""
    try:
        info = os.fstat(fd)
    except OSError:
        return None
    return info.st_dev, info.st_ino
