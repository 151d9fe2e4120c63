"""`Config`: role, plan, seeds and options that a process is told; exit codes. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

ENVIRONMENT = "HOTLAP_TRIAL"
"""Holds, in a trial of a recipe, what its process is told; never set elsewhere."""

IN_TRIAL = "HOTLAP_IN_TRIAL"
"""Set while a trial imports a recipe."""

OF_COMMAND = "of_command"
"""Option of a process that a command has started: another one may be the one that trains."""
NOT_IN_COMMAND = (
    "no Python process that it started on this machine imported torch, or it was started without "
    "the environment that hotlap sets (containers, `ssh`, and the flags -I, -E and -S of Python)"
)
"""Why no process of a command was attached to."""

EXIT_STOPPED = 0
EXIT_CUT = 96
"""Exit code of a trial whose script has closed the socket: it could only be misunderstood."""
EXIT_FAILED = 97
"""Exit code of a trial in which hotlap itself failed; the reason went over the channel."""

_LONG = 1 << 15
"""Characters of options from which on they are in a file."""

UNREAD = "unread: "
"""Begins what stands for the digest of a value that could not be read."""

Role = Literal[
    "run",
    "observe",
    "race",
    "verify",
    "reference",
    "own_place",
    "seeds",
    "duel",
    "fit",
    "pace",
    "memory",
    "count",
    "profile",
    "follow",
]


class Config(NamedTuple):
    """What an attached process is told, in its environment."""

    role: Role
    address: str | None = None
    """Where to connect, see `hotlap.trial.hub`; None where nobody listens."""
    plan: Mapping[str, Mapping[str, Any]] = {}
    techniques: tuple[str, ...] = ()
    """Techniques from outside, as `module:NAME`."""
    inject_seed: int | None = None
    """Seed every global generator with this as soon as torch is there."""
    shift_seeds: int = 0
    """Add this to every seed that the script sets."""
    fill_ahead: bool = False
    options: Mapping[str, Any] = {}
    """What the role needs."""
    stack_file: str | None = None
    """Where the process writes its stack when it is asked, see `hotlap.trial.stack`."""
    options_file: str | None = None
    """Holds options as JSON where they are too long for an environment."""

    def to_text(self) -> str:
        written = self._written_options()
        rest = {k: v for k, v in self.options.items() if k not in written or written[k] != v}
        return json.dumps({**self._asdict(), "options": rest})

    @classmethod
    def from_text(cls, text: str) -> "Config":
        """Read back what `to_text` wrote."""
        data = json.loads(text)
        data["techniques"] = tuple(data["techniques"])
        config = cls(**data)
        return config._replace(options={**config._written_options(), **config.options})

    def with_options_in(self, file: Path) -> "Config":
        """Return the same, with its options in a file if they are long.

        One variable of an environment has at most 128 KiB on Linux.
        """
        text = json.dumps(self.options)
        if len(text) <= _LONG:
            return self
        file.write_text(text)
        return self._replace(options=json.loads(text), options_file=str(file))

    def _written_options(self) -> dict[str, Any]:
        return {} if self.options_file is None else json.loads(Path(self.options_file).read_text())
