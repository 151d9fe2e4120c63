"""`Launch`: the launcher's process and its socket: sends its order, hears errors, ends it."""

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from hotlap.errors import ScratchError

_LAUNCHER = Path(__file__).with_name("launcher")
_CLEAN_UP_S = 5.0
"""Seconds that the keeper of a copied folder gets to remove it, after its trial was killed."""

Started = TypeVar("Started")
_lasting_made = threading.Lock()
_lasting: "tuple[int, queue.SimpleQueue[Callable[[], None]]] | None" = None
"""The process that has the thread, and what the thread is to do."""


def _from_lasting_thread(work: Callable[[], Started]) -> Started:
    """Return what `work` returns, called in a thread that lives as long as this process.

    Linux ties a process to the thread that started it, not to that thread's process: a launcher
    would be killed when a thread that used a lab ends. Source: PR_SET_PDEATHSIG in prctl(2).
    """
    global _lasting
    with _lasting_made:
        if _lasting is None or _lasting[0] != os.getpid():
            tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
            threading.Thread(
                target=_serve, args=(tasks,), name="hotlap-launches", daemon=True
            ).start()
            _lasting = os.getpid(), tasks
    future: Future[Started] = Future()

    def task() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    _lasting[1].put(task)
    return future.result()


def _serve(tasks: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        tasks.get()()


class Launch:
    """A launcher's process, and the socket on which it is told what to do and says what failed."""

    def __init__(self, order: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.process = _from_lasting_thread(
                lambda: subprocess.Popen[bytes](
                    [sys.executable, "-I", "-S", str(_LAUNCHER), str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    **{"stdin": subprocess.DEVNULL, **options},
                )
            )
        self.order = {
            "copy": None,
            "network": False,
            "parent": os.getpid(),
            **order,
        }
        with contextlib.suppress(BrokenPipeError):  # then it has no answer either
            self._ours.sendall(json.dumps(self.order).encode() + b"\n")

    def answer(self) -> dict[str, Any] | None:
        """Return what it says next, None once the command runs or all is over."""
        line = b""
        while not line.endswith(b"\n"):
            part = self._ours.recv(1 << 16)
            if not part:
                self._ours.close()
                return None
            line += part
        return json.loads(line)

    def proceed(self) -> None:
        self._ours.sendall(b"\n")

    def end_with_error(self, answer: Mapping[str, Any] | None) -> ScratchError:
        """End it, and return the error that says why."""
        self.end()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        code = self.process.returncode
        said = answer["error"] if answer else f"the launcher ended with exit code {code}"
        return ScratchError(f"the trial could not be started: {said}")

    def is_over(self) -> bool:
        return self.process.poll() is not None and not os.path.exists(self.order["copy"] or "")

    def end(self) -> None:
        """Kill every process, and leave no copied folder."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._ours.close()
        deadline = time.monotonic() + _CLEAN_UP_S
        while not self.is_over() and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.order["copy"]:
            shutil.rmtree(self.order["copy"], ignore_errors=True)
