"""Types of options that several commands have: `--json`, and durations such as `--budget 2m`."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from hotlap.cli.durations import parse_duration

JsonFlag = Annotated[
    bool,
    Parameter(
        name="--json",
        help="Print one JSON document on standard output, and nothing else there.",
    ),
]
"""The `--json` of every command that reports something."""


def _duration(kind: Any, tokens: Sequence[Token]) -> float:
    del kind
    return parse_duration(tokens[0].value, tokens[0].keyword or "")


Duration = Annotated[
    float,
    Parameter(
        converter=_duration, n_tokens=1, metavar="TIME", show_default=lambda value: f"{value:g}s"
    ),
]
"""An option that is given as `90`, `90s`, `2m` or `1h`; the function gets seconds."""
