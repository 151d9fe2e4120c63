"""One end of the socket between hotlap and a process that it measures: JSON lines."""

import json
import os
import socket
from collections.abc import Callable
from typing import Any


class Channel:
    """One end of the socket. Sending never raises: a script must outlive whoever watches it.

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
        while b"\n" not in self._buffer:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

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
