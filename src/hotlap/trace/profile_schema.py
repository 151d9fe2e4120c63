"""What a profile of some steps shows, and the names of its regions. No torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

PHASE_MARK = "hotlap."
"""What the name of a phase's region begins with."""
MODULE_MARK = " ("
"""Between a module's name and its class, in the name of its region."""


@dataclass(frozen=True)
class Row:
    """An operator, kernel or module."""

    name: str
    ms: float
    """A step, in itself; of a module with all that it calls."""
    calls: float
    """A step."""
    where: str = ""
    """The user's function that most of this time was spent in, empty if not known."""
    more_ms: float = 0.0
    """Of a module: of the backward of what it has called, a step."""


@dataclass(frozen=True)
class Gap:
    """A time in which nothing is computed."""

    ms: float
    after_ms: float
    """From the begin of the profile on."""
    during: str
    """What the host did meanwhile: the innermost call or region that lasted through it."""


@dataclass(frozen=True)
class Profile:
    """What a trace shows. All times are those of a profiled run, which is slower than others."""

    steps: int
    """Steps; 1 where the trace marks none."""
    step_ms: float
    """From the begin of the first to the end of the last, a step."""
    phases_ms: Mapping[str, float]
    """`data`, `forward`, `backward`, `optimizer`, `other` and `idle`, a step; of the host, which
    may run ahead of a device. In `idle` no operator runs on the thread that trains."""
    operators: tuple[Row, ...]
    kernels: tuple[Row, ...] = ()
    copies: tuple[Row, ...] = ()
    """Copies between host and device, named by direction and kind of memory."""
    waits: tuple[Row, ...] = ()
    """Calls that wait for the device."""
    modules: tuple[Row, ...] = ()
    gaps: tuple[Gap, ...] = ()
    """The longest, of the device if there is one, else of the thread that trains."""
    device_busy: float | None = None
    """Share of the time in which some kernel or copy runs; None without a device."""
    has_phases: bool = True
    """False where phases were guessed from names of operators."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)
