"""Parses seconds on a command line: `90s`, `2m`, `1h`."""

import re

from hotlap.errors import UsageError

_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<unit>s|m|h)?", re.ASCII)
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str, option: str = "") -> float:
    """Return the seconds that a text such as `90`, `90s`, `2m` or `1h` names.

    Args:
        text: what was given.
        option: where it was given, such as `--budget`; for the message.

    Raises:
        UsageError: the text is no duration, or none above zero.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match else 0.0
    if not 0 < seconds < 1e9:
        given = f"{option} '{text}'" if option else f"'{text}'"
        raise UsageError(
            f"{given} is not a duration. Expected: a number above 0, of seconds or with the unit "
            "s, m or h, as in `90`, `90s`, `2m` or `1h`."
        )
    return seconds
