"""Reads what a trial prints while it runs, and keeps the end of it."""

import os
import threading
from typing import IO

_KEPT = 64 * 1024
_REST_S = 5.0
"""Seconds in which the rest is read, once the trial has ended."""


class TrialOutput:
    """Reads a pipe to its end, in a thread of its own.

    Args:
        stream: the end that is read.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.bytes = 0
        """How much was printed in all."""
        self._stream, self._last = stream, bytearray()
        self._thread = threading.Thread(target=self._read, name="hotlap-out", daemon=True)
        self._thread.start()

    @property
    def tail(self) -> str:
        """The last that was printed."""
        return self._last.decode(errors="replace")

    def wait(self) -> None:
        """Wait until everything is read; whoever else has the pipe open is not waited for long."""
        self._thread.join(timeout=_REST_S)

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 1 << 16):
            self.bytes += len(chunk)
            self._last += chunk
            if len(self._last) > 2 * _KEPT:
                del self._last[:-_KEPT]
