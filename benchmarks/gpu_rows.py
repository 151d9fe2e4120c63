"""Rows of a measurement that may be stopped at any moment: one line of JSON each, kept at once."""

import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ASKED = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "memory.used")
"""What nvidia-smi is asked before and after every part."""


_PR_SET_PDEATHSIG = 1
_LONGEST = 2**20
"""Bytes of a line, at the most."""


class Rows:
    """Appends rows to a file that others may append to as well, and flushes each.

    Args:
        path: the file; standard output if None.
        part: named in every row.
    """

    def __init__(self, path: Path | None, part: str) -> None:
        self.path, self.part = path, part

    def add(self, **row: Any) -> None:
        """Write one row."""
        line = json.dumps(_finite({"part": self.part, **row}), default=str) + "\n"
        if self.path is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        # One write, at the end of the file: a process that is killed leaves no half of a line.
        place = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _drop_half_line(place)
            os.write(place, line.encode())
            os.fsync(place)
        finally:
            os.close(place)


def _drop_half_line(place: int) -> None:
    """Drop what follows the last end of a line: whoever wrote it was stopped."""
    size = os.fstat(place).st_size
    if size and os.pread(place, 1, size - 1) != b"\n":
        begin = max(0, size - _LONGEST)
        os.ftruncate(place, begin + os.pread(place, size - begin, begin).rfind(b"\n") + 1)


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, however that does; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, [] if there is none.

    A last line that does not end is left out: whoever wrote it was stopped.

    Raises:
        ValueError: a line is no JSON object.
    """
    if not path.is_file():
        return []
    rows = []
    whole = path.read_text().rpartition("\n")[0]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} is no JSON object. Allowed: a file of this command.")
        rows.append(row)
    return rows


def state() -> dict[str, float | None]:
    """Return clocks (MHz), power (W), temperature (C) and memory (MiB) of the first GPU; {} if
    nvidia-smi is not here."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = f"--query-gpu={','.join(ASKED)}"
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
    try:
        told = subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout
    except subprocess.TimeoutExpired:
        return {}
    values = [text.strip() for text in told.split(",")]
    if len(values) != len(ASKED):
        return {}
    return {name: _number(text) for name, text in zip(ASKED, values, strict=True)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
