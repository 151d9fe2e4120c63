"""Forwards a process's signals to the process that does its work.

A signal that was sent to the whole group, by a terminal, a scheduler or `timeout`, has reached the
script already: a second copy would cut short what it does at the first. Nothing in a signal says
whom else it was sent to, so a witness is asked: a process of the same group that does nothing but
hold its signals back. What has reached it has reached the script.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

NAMES = (
    "SIGTERM",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGTSTP",
    "SIGCONT",
    "SIGWINCH",
)
_GATHER_S = 0.03
"""In which one sender's signals to process and group are one, and have reached everybody."""
_STOP_S = 0.5
"""A script that is told to stop has done so by then, or does not want to."""
_MOST_FILES = 1 << 16
"""Files that are closed where nobody says which are open: their limit may be a billion, and some
Pythons close them one by one."""


class _Witness:
    """A process of this one's group that holds back its signals, and tells which it has."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = set(numbers)
        self._ours, theirs = socket.socketpair()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    self._stay(theirs)
                finally:
                    os._exit(0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()

    def take_seen(self) -> set[int]:
        """Return what it has got since it was asked last."""
        try:
            self._ours.sendall(b"?")
            count = self._ours.recv(1)
            return set(self._ours.recv(count[0])) if count and count[0] else set()
        except OSError:
            # It was killed: then nobody can say.
            return set()

    def end(self) -> None:
        """Let it end, and wait until it has."""
        self._ours.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _stay(self, theirs: socket.socket) -> None:
        number = theirs.fileno()
        # Whoever waits for the end of the script's output does not wait for this process.
        _close_all_but(number)
        while os.read(number, 1):
            pending = sorted(signal.sigpending() & self._numbers)
            for each in pending:
                signal.sigwait({each})
            os.write(number, bytes([len(pending), *pending]))


class SignalForwarder:
    """While entered, hands this process's signals on to one that `to` names.

    Enter it before that process is started: no signal is lost in between. Outside of the main
    thread it does nothing. What is ignored, as by `nohup`, stays so.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[Any] | None = None
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._previous: dict[int, Any] = {}
        self._witness: _Witness | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "SignalForwarder":
        if threading.current_thread() is not threading.main_thread():
            return self
        numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
        numbers = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
        self._witness = _Witness(numbers)
        for number in numbers:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def forward_to(self, process: "subprocess.Popen[Any]") -> None:
        """Hand on to that process what has arrived, and what will."""
        self._process = process
        if self._witness is not None:
            self._thread = threading.Thread(target=self._hand_on, daemon=True)
            self._thread.start()

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._thread is not None:
            self._arrived.put(0)
            self._thread.join()
        if self._witness is not None:
            self._witness.end()

    def _note(self, number: int, frame: Any) -> None:
        del frame
        self._arrived.put(number)

    def _hand_on(self) -> None:
        assert self._process is not None and self._witness is not None
        while number := self._arrived.get():
            time.sleep(_GATHER_S)
            arrived = [number]
            with contextlib.suppress(queue.Empty):
                while True:
                    arrived.append(self._arrived.get_nowait())
            seen = self._witness.take_seen()
            for each in arrived:
                if each and each not in seen:
                    self._process.send_signal(each)
            if signal.SIGTSTP in arrived:
                self._stop_with_it()
            if 0 in arrived:
                return

    def _stop_with_it(self) -> None:
        """Stop as the script has, so that a shell has its terminal back; go on together."""
        assert self._process is not None
        until = time.monotonic() + _STOP_S
        while not _is_stopped(self._process.pid):
            if time.monotonic() > until:
                return
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._process.send_signal(signal.SIGCONT)


def _close_all_but(number: int) -> None:
    """Close every open file but one, in a process that has just been forked."""
    try:
        opened: Iterable[int] = [int(each) for each in os.listdir("/proc/self/fd")]
    except OSError:
        opened = range(_MOST_FILES)
    for each in opened:
        # The list itself was an open file.
        with contextlib.suppress(OSError):
            if each != number:
                os.close(each)


def _is_stopped(pid: int) -> bool:
    # 10 ms, for what happens in few runs.
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
