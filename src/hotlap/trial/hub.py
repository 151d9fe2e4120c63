"""`Hub`: the parent's socket, to which every process of a run or a trial connects."""

import itertools
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.trial.channel import Channel, shorten_path

_LOOK_S = 0.05
"""How often it is looked whether a process that has not connected yet is still there."""
_numbers = itertools.count()
_WAITING = 1024
"""Processes that may connect at once; another one is told that nobody listens."""


class Hub:
    """Gives the messages of all processes that connect, and sends to all of them.

    Args:
        folder: where the socket is made; nobody else may write into it.
        may_be_others: True if a process may connect after all that had connected are gone.
    """

    def __init__(self, folder: Path, *, may_be_others: bool = False) -> None:
        self._may_be_others = may_be_others
        self.processes: list[Channel] = []
        """In the order in which they have connected; one that is gone stays in its place."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Never one that was used before: what a trial has left beside its socket, such as the claim
        # of a process that is still ending, would be taken for this one's.
        while (path := folder / f"socket-{next(_numbers)}").exists():
            pass
        self.address = str(path)
        """What a process is told, to connect."""
        with shorten_path(self.address) as name:
            self._listener.bind(name)
        self._listener.listen(_WAITING)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open: set[int] = set()
        self._early: list[tuple[str, dict[str, Any]]] = []
        """What was sent before anybody had connected."""

    def receive(
        self, timeout_s: float, is_alive: Callable[[], bool]
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the next message and the number of the process that it is from.

        Args:
            timeout_s: how long to wait for it.
            is_alive: False once no process is left that might still connect.

        Returns:
            None if nothing can come any more: all who had connected are gone, or nobody has, and
            nobody is alive.

        Raises:
            TimeoutError: nothing came in time.
        """
        deadline = time.monotonic() + timeout_s
        was_alive = True
        while True:
            for number, process in enumerate(self.processes):
                message = process.pop_buffered_message()
                if message is not None:
                    return number, message
            is_over = bool(self.processes) and not self._may_be_others
            if not self._open and (is_over or not was_alive):
                return None
            # Asked before it is looked for messages: what a process has said, it said before.
            was_alive = bool(self._open) or is_alive()
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing came in {timeout_s} s")
            self._look(left if self._open else min(left, _LOOK_S))

    def _look(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif not self.processes[key.data].fill():
                self._selector.unregister(key.fd)
                self._open.discard(key.data)
                # What it has said stays to be heard.
                self.processes[key.data].close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # It has gone already, or this process may open no more files now.
            time.sleep(_LOOK_S)
            return
        number, fd = len(self.processes), connection.detach()
        self.processes.append(Channel(fd))
        self._open.add(number)
        self._selector.register(fd, selectors.EVENT_READ, number)
        while self._early:
            kind, values = self._early.pop(0)
            self.processes[number].send(kind, **values)

    def send(self, kind: str, **values: Any) -> None:
        """Send one message to every process that is still there, or to the first that will be."""
        if not self.processes:
            self._early.append((kind, values))
        for number in sorted(self._open):
            self.processes[number].send(kind, **values)

    def close(self) -> None:
        """Hear nobody any more, and remove the socket."""
        self._selector.close()
        self._listener.close()
        for process in self.processes:
            process.close()
        Path(self.address).unlink(missing_ok=True)
