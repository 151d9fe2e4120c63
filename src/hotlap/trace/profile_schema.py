"""`WindowRecord`: what a process says of the steps that it recorded with torch.profiler."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

CPU, CUDA, MEMORY = KINDS = ("cpu", "cuda", "memory")
"""What can be recorded: operators, kernels, and operators with what they allocate."""
TRACE = "trace.json"
"""File in the folder that a trial writes to."""
_RECORD = "window.json"


@dataclass(frozen=True)
class WindowRecord:
    """The steps around and in a profiler's window."""

    has_trace: bool
    plain_ms: float | None
    """Median of the steps just before it, of the same process; None if there were none."""
    recorded_ms: float | None
    steps: int
    export_s: float
    """What it took to write the trace."""
    lines: tuple[tuple[str, str, str], ...]
    """(region, operator, `file:line`), see `Summary.with_lines`."""
    notes: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write it into a folder that is there."""
        (folder / _RECORD).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "WindowRecord":
        """Read back what `write` wrote.

        Raises:
            FileNotFoundError: there is none.
        """
        data = json.loads((folder / _RECORD).read_text())
        lines = tuple(tuple(row) for row in data["lines"])
        return cls(**{**data, "lines": lines, "notes": tuple(data["notes"])})
