"""Handlers of SIGINT, SIGTERM, SIGHUP: the first ends training after its step, the next at once."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import weakref
from typing import Any

from hotlap.errors import SignalExit

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_ONE_S = 0.3
"""In which signals are one: `timeout` and others send to the process and to its group."""

_asked: list[int] = []
"""Signals that ended this process, where no code swallowed that."""


def leave_on_signals() -> None:
    """End by an exception where a signal would end this process at once: trials leave nothing."""
    for number in _SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(number, _leave)


def _leave(number: int, frame: object) -> None:
    del frame
    _asked.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SignalExit(128 + number)


_open: "weakref.WeakSet[Stopping]" = weakref.WeakSet()


def _forget() -> None:
    # A child that was forked is stopped by its own signals, and tells nobody of them.
    for each in list(_open):
        each.leave_to_defaults()


os.register_at_fork(after_in_child=_forget)


class Stopping:
    """While entered, takes the signals that ask this process to end.

    Handlers do nothing, so that no line of the training can be interrupted by one, nor swallow it:
    a thread reads what arrived. The first signal is there for whoever asks; the second ends the
    process at once, whatever it is doing. Outside of the main thread nothing is changed; nor are
    signals that are ignored, as by `nohup`, or that the user's own code handles.

    What the user's own code has swallowed before counts as asked.
    """

    def __init__(self) -> None:
        self.number = _asked.pop() if _asked else None
        """The signal that asked first, None if none has."""
        self._since = time.monotonic()
        self._replaces = (_leave, signal.SIG_DFL, signal.default_int_handler)
        self._previous: dict[int, Any] = {}
        self._wakeup = -1
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_asked(self) -> bool:
        """True once the process was asked to end."""
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """What a process says that a signal ended."""
        return 128 + (self.number or signal.SIGTERM)

    @property
    def name(self) -> str:
        """The signal's name; another rank's is not known here."""
        return "a signal to another rank" if self.number is None else _name_of(self.number)

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(end is self._ends[0])
        self._wakeup = signal.set_wakeup_fd(self._ends[1].fileno(), warn_on_full_buffer=False)
        _open.add(self)
        for number in _SIGNALS:
            if signal.getsignal(number) in self._replaces:
                self._previous[number] = signal.signal(number, _do_nothing)
        self._thread = threading.Thread(target=self._watch, args=(self._ends[0],), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        _open.discard(self)
        self._put_back()
        if self._ends is None or self._thread is None:
            return
        self._ends[1].close()
        self._thread.join()
        self._ends[0].close()

    def leave_to_defaults(self) -> None:
        """Handle nothing in this process any more."""
        self._put_back()
        self._ends = self._thread = None

    def _put_back(self) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            if signal.getsignal(number) is _do_nothing:
                signal.signal(number, handler)
        if self._ends is not None:
            signal.set_wakeup_fd(self._wakeup)

    def _watch(self, end: socket.socket) -> None:
        # Every signal with a handler of Python's is told of here, those of workers that ended too.
        while arrived := end.recv(64):
            for number in arrived:
                if number in self._previous:
                    self._take(number)

    def _take(self, number: int) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._since = number, now
            _tell(f"{self.name}: ending after this step. Send it again to end at once")
        elif now - self._since > _ONE_S:
            _tell(f"{_name_of(number)} again: ended at once. Checkpoints are complete")
            os._exit(128 + number)


def _name_of(number: int) -> str:
    return signal.Signals(number).name


def _do_nothing(number: int, frame: Any) -> None:
    del number, frame


def _tell(text: str) -> None:
    # Not by the stream, which the main thread may be writing to.
    if sys.stderr is not None:
        try:
            os.write(2, f"hotlap: {text}\n".encode())
        except OSError:
            return
