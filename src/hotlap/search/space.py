"""Distributions of a hyperparameter: `Uniform`, `LogUniform`, `Choice` and others. No torch.

def task(*, lr: Annotated[float, hotlap.LogUniform(1e-4, 1e-1)] = 1e-3) -> hotlap.Task: ...
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum, Flag
from typing import Any

from hotlap.errors import UsageError

Value = bool | int | float | str
DIGITS = 4
"""Of numbers that are drawn: a command with them can be read and typed."""


class Distribution(ABC):
    """Values that a parameter may have."""

    kind: str
    """Its name on a command line."""

    @abstractmethod
    def draw(self, share: float) -> Value:
        """Return the value below which that share, from 0 to below 1, of the distribution lies."""

    @abstractmethod
    def grid(self, points: int) -> tuple[Value, ...]:
        """Return the values of a grid, `points` of them where the range is continuous."""

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as plain data."""
        return {"kind": self.kind, **asdict(self)}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Uniform(Distribution):
    """A number between two others.

    Raises:
        UsageError: the range is empty.
    """

    low: float
    high: float
    kind = "uniform"

    def __post_init__(self) -> None:
        _check_range(self, self.low, self.high)

    def draw(self, share: float) -> float:
        return self.round(self.low + share * (self.high - self.low))

    def round(self, value: float) -> float:
        """Return a value with few digits, within the range."""
        return _rounded(value, self.low, self.high)

    def grid(self, points: int) -> tuple[float, ...]:
        return tuple(self.draw(share) for share in _shares(points))


@dataclass(frozen=True)
class LogUniform(Distribution):
    """A number between two others whose logarithm is uniform: learning rates, weight decay.

    Raises:
        UsageError: the range is empty, or does not begin above 0.
    """

    low: float
    high: float
    kind = "loguniform"

    def __post_init__(self) -> None:
        _check_range(self, self.low, self.high)
        if self.low <= 0:
            raise UsageError(
                f"{self} has low={self.low}, which has no logarithm. Expected: low above 0. Use "
                "Uniform for a range that begins at 0 or below."
            )

    def draw(self, share: float) -> float:
        low, high = math.log(self.low), math.log(self.high)
        return self.round(math.exp(low + share * (high - low)))

    def round(self, value: float) -> float:
        """Return a value with few digits, within the range."""
        return _rounded(value, self.low, self.high)

    def grid(self, points: int) -> tuple[float, ...]:
        return tuple(self.draw(share) for share in _shares(points))


@dataclass(frozen=True)
class IntRange(Distribution):
    """An integer from `low` to `high`, both included.

    Raises:
        UsageError: the range is empty, or its ends are no integers.
    """

    low: int
    high: int
    kind = "intrange"

    def __post_init__(self) -> None:
        _check_integers(self, self.low, self.high)
        _check_range(self, self.low, self.high, allows_one=True)

    def draw(self, share: float) -> int:
        return self.low + int(share * (self.high - self.low + 1))

    def grid(self, points: int) -> tuple[int, ...]:
        span = self.high - self.low
        if span < points:
            return tuple(range(self.low, self.high + 1))
        return tuple(dict.fromkeys(self.low + round(share * span) for share in _shares(points)))


@dataclass(frozen=True)
class PowerOfTwo(Distribution):
    """A power of two from `low` to `high`, both included: batch sizes, widths.

    Raises:
        UsageError: the range is empty, or its ends are no powers of two.
    """

    low: int
    high: int
    kind = "poweroftwo"

    def __post_init__(self) -> None:
        _check_integers(self, self.low, self.high)
        _check_range(self, self.low, self.high, allows_one=True)
        for end in (self.low, self.high):
            if end < 1 or end & (end - 1):
                raise UsageError(
                    f"{self} has the end {end}. Expected: powers of two at both ends, as in "
                    "PowerOfTwo(16, 256)."
                )

    def draw(self, share: float) -> int:
        values = self.grid(0)
        return values[int(share * len(values))]

    def grid(self, points: int) -> tuple[int, ...]:
        del points
        return tuple(
            1 << power for power in range(self.low.bit_length() - 1, self.high.bit_length())
        )


@dataclass(frozen=True, init=False)
class Choice(Distribution):
    """One of some values: `Choice("adam", "sgd")`.

    Members of an Enum are what a command line gives once `read_space` knows the parameter's type.

    Raises:
        UsageError: there is none, or one that no command line can give.
    """

    values: tuple[Value, ...]
    kind = "choice"

    def __init__(self, *values: Value | Enum) -> None:
        object.__setattr__(self, "values", values)
        if not values:
            raise UsageError("Choice() has no values. Expected: one or more, as in Choice(1, 2).")
        for value in values:
            if not isinstance(value, Value | Enum) or isinstance(value, Flag):
                raise UsageError(
                    f"Choice() has the value {value!r} ({type(value).__name__}). Expected: values "
                    "that can be passed on a command line: numbers, strings and bools, or members "
                    "of an Enum that is not a Flag."
                )

    def draw(self, share: float) -> Value:
        return self.values[int(share * len(self.values))]

    def grid(self, points: int) -> tuple[Value, ...]:
        del points
        return self.values


@dataclass(frozen=True)
class Derived:
    """A value that follows from other parameters: `Derived(lambda batch_size: 1e-3 * batch_size)`.

    The function's arguments have the names of parameters of the recipe. It is asked in a search
    only: `hotlap train` uses what it is given, or the default.

    Raises:
        UsageError: it cannot be called, or does not name its arguments.
    """

    function: Callable[..., Value]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(
                f"Derived({self.function!r}) is not callable. Expected: a function of other "
                "parameters, as in Derived(lambda batch_size: 1e-3 * batch_size)."
            )
        if not self.needs:
            raise UsageError(
                "Derived() was given a function without arguments, so it depends on nothing. "
                "Expected: arguments with the names of other parameters, as in Derived(lambda "
                "batch_size: 1e-3 * batch_size)."
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the parameters that it follows from."""
        return tuple(inspect.signature(self.function).parameters)


KINDS: dict[str, Callable[..., Distribution]] = {
    each.kind: each for each in (LogUniform, Uniform, IntRange, PowerOfTwo, Choice)
}


def from_json(data: dict[str, Any]) -> Distribution:
    """Return the distribution that `to_json` gave."""
    rest = {key: value for key, value in data.items() if key != "kind"}
    return Choice(*rest["values"]) if data["kind"] == "choice" else KINDS[data["kind"]](**rest)


def _shares(points: int) -> tuple[float, ...]:
    if points < 1:
        raise UsageError(f"grid(points={points}) is empty. Expected: points=1 or more.")
    return (0.5,) if points == 1 else tuple(n / (points - 1) for n in range(points))


def _rounded(value: float, low: float, high: float) -> float:
    # Of a narrow range far from 0, such as 0.9999 to 0.99999, so few digits leave only the ends.
    narrow = _magnitude(value) - _magnitude(high - low) - 1 if value else 0
    digits = DIGITS + max(0, narrow)
    return min(max(float(f"{value:.{digits}g}"), low), high)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _check_range(of: Distribution, low: float, high: float, *, allows_one: bool = False) -> None:
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise UsageError(f"{of} has the end {end!r}. Expected: finite numbers at both ends.")
    if low > high or (low == high and not allows_one):
        raise UsageError(
            f"{of} is an empty range: low={low} is not below high={high}. Expected: low below "
            "high. For a single value, use Choice."
        )


def _check_integers(of: Distribution, *ends: int) -> None:
    for end in ends:
        if type(end) is not int:
            raise UsageError(f"{of} has the end {end!r}. Expected: integers at both ends.")
