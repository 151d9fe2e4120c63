"""`Record`: one line of a run's `metrics.jsonl`, and which lines count after a resume."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STEP, EPOCH, EVALUATION, SYSTEM = "step", "epoch", "evaluation", "system"
BEGAN, RESUMED = "began", "resumed"
MEASURED = (STEP, EPOCH, EVALUATION, SYSTEM)
"""Kinds of records that hold values; the other two say where a process took the run up."""
_SPELLED = {"NaN", "Infinity", "-Infinity"}
"""Numbers that JSON has no words for, as text. `float` reads them."""
_LARGEST = 2**63
"""What whole numbers, steps and seconds stay below: larger ones cannot be calculated with."""


@dataclass(frozen=True, slots=True)
class Record:
    """Values of a run at one step."""

    kind: str
    """`step`, `epoch`, `evaluation` or `system`; or `began` and `resumed`, without values."""
    step: int
    """Optimizer steps done."""
    epoch: int | None
    """From 1, None if not known."""
    time_s: float
    """Seconds since the run began, also those in which no process trained it."""
    values: Mapping[str, float]

    def line(self) -> str:
        """Return the record as a line of JSON."""
        data = {
            "kind": self.kind,
            "step": self.step,
            "epoch": self.epoch,
            "time_s": round(self.time_s, 3),
            "values": {name: as_json(value) for name, value in self.values.items()},
        }
        return json.dumps(data, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str | bytes) -> "Record | None":
        """Return the record that a line holds, None if it holds none."""
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(data, dict):
            return None
        kind, step, epoch = (data.get(name) for name in ("kind", "step", "epoch"))
        time_s: Any = data.get("time_s")
        values = data.get("values")
        if not isinstance(kind, str) or type(step) is not int or not isinstance(values, dict):
            return None
        if type(epoch) not in (int, type(None)) or type(time_s) not in (int, float):
            return None
        # Also false for a time that is not a number.
        if not (-_LARGEST < step < _LARGEST and -_LARGEST < time_s < _LARGEST):
            return None
        numbers = {name: _as_number(value) for name, value in values.items()}
        if None in numbers.values():
            return None
        return cls(kind, step, epoch, time_s, numbers)


def as_json(value: Any) -> float | str:
    """Return a number as JSON has it; text, which `float` reads, for one that JSON lacks.

    >>> as_json(0.5), as_json(float("nan"))
    (0.5, 'NaN')
    """
    number = _calculable(value) if type(value) is int else float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _as_number(value: Any) -> Any:
    if type(value) is int:
        return _calculable(value)
    if type(value) is float:
        return value
    return float(value) if isinstance(value, str) and value in _SPELLED else None


def _calculable(value: int) -> float:
    """Return a whole number, as a float if it is large; infinity if no float is as large."""
    if abs(value) < _LARGEST:
        return value
    try:
        return float(value)
    except OverflowError:
        # As JSON's own `1e400` is read.
        return math.inf if value > 0 else -math.inf


def valid_records(records: Iterable[Record]) -> list[Record]:
    """Return the records that count, in their order.

    A run that was resumed from step N has taken the steps after N again: of what was recorded
    before, only records up to step N count. A run that began from the start supersedes everything
    before.
    """
    valid: list[Record] = []
    for record in records:
        if record.kind == BEGAN:
            valid.clear()
        elif record.kind == RESUMED:
            valid = [each for each in valid if each.step <= record.step]
        elif record.kind in MEASURED:
            valid.append(record)
    return valid
