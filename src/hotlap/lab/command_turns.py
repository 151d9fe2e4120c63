"""Runs whole commands in turns: while one of them runs, the others stand still.

Their times can then be compared, however the machine's speed changes meanwhile.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hotlap.host.parent_death import dies_with
from hotlap.lab import family

_TURN_S = 1.0
_LOOK_S = 0.02


@dataclass(frozen=True)
class CommandRun:
    """What a command printed, and how long it took, standing still not counted."""

    lines: tuple[tuple[float, str], ...]
    """Of its standard output: the seconds that it had run by then, and the line."""
    seconds: float
    exit_code: int
    """As `subprocess` gives it."""

    @property
    def output(self) -> str:
        return "".join(f"{line}\n" for _, line in self.lines)


def run_in_turns(
    commands: Sequence[Sequence[str]], folder: Path, *, turn_s: float = _TURN_S
) -> list[CommandRun]:
    """Run the commands to their ends, each for a while, and again, until all have ended.

    They find no standard input, and what they write to standard error is dropped.

    Args:
        commands: with their arguments.
        folder: where they start.
        turn_s: seconds of a turn.
    """
    with contextlib.ExitStack() as opened:
        runs = [opened.enter_context(_Running.of(command, folder)) for command in commands]
        while live := [each for each in runs if each.exit_code is None]:
            for each in live:
                each.take_turn(turn_s)
        return [each.result() for each in runs]


class _Running:
    """A command that runs while it has its turn.

    Args:
        command: with its arguments.
        folder: where it starts.
        printed: an empty file for its standard output.
    """

    def __init__(self, command: Sequence[str], folder: Path, printed: IO[bytes]) -> None:
        self._command, self._folder, self._printed = command, folder, printed
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds = 0.0
        self._lines: list[tuple[float, str]] = []
        self._rest = ""
        self.exit_code: int | None = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, command: Sequence[str], folder: Path) -> "Iterator[_Running]":
        """Return it; whatever still runs at the end is killed."""
        with tempfile.TemporaryFile() as printed:
            running = cls(command, folder, printed)
            try:
                yield running
            finally:
                running.kill()

    def take_turn(self, seconds: float) -> None:
        """Let it run for that long, or to its end."""
        begin = time.monotonic()
        process = self._process
        if process is None:
            process = self._process = self._start()
        else:
            family.resume(process.pid, keeper_too=True)
        spent = 0.0
        while self.exit_code is None and spent < seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.exit_code = process.wait(_LOOK_S)
            spent = time.monotonic() - begin
            self._read(self._seconds + spent)
        if self.exit_code is None:
            family.stop(process.pid, keeper_too=True)
            spent = time.monotonic() - begin
        self._seconds += spent

    def result(self) -> CommandRun:
        """Return how it has ended."""
        assert self.exit_code is not None
        rest = [(self._seconds, self._rest)] if self._rest else []
        return CommandRun((*self._lines, *rest), self._seconds, self.exit_code)

    def kill(self) -> None:
        """End all of its processes."""
        if self._process is not None and self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            list(self._command),
            cwd=self._folder,
            # Else a script's lines would only be seen at its end.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),
        )

    def _read(self, seconds: float) -> None:
        # The process writes through the same open file: a read must not move its position.
        size = os.fstat(self._printed.fileno()).st_size
        data = os.pread(self._printed.fileno(), size, 0).decode(errors="replace")
        *whole, self._rest = data.split("\n")
        self._lines += [(seconds, line) for line in whole[len(self._lines) :]]
