"""`Command`, the record of a command, and a quick reader of plain options, without a library."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hotlap.cli.target import split
from hotlap.errors import UsageError

EXIT_CODES = (
    "0: done. 2: the input is wrong, nothing was started. 130, 143, 129: ended by Ctrl-C, SIGTERM, "
    "SIGHUP. 1: any other error."
)


class Command(NamedTuple):
    """One command of the command line; each module of a command holds one, named `COMMAND`."""

    name: str
    function: Callable[..., int]
    """Its parameters are the options, its docstring is the help; it returns the exit code."""
    examples: tuple[str, ...]
    """Command lines that work, each with what it does behind a `#`."""
    takes_script: bool = False
    """True if `SCRIPT [ARGS]` follows: the function then has a keyword `target: Target`."""
    exit_codes: str = EXIT_CODES
    positionals: tuple[str, ...] = ()
    """What stands before SCRIPT, in capitals."""
    takes_text: bool = False
    """True if an argument may be a text of any length, and no path."""


class Given(NamedTuple):
    """What was given behind a command's name."""

    function: Callable[..., int | None]
    """The command's, or what prints its help."""
    values: Mapping[str, Any]
    """Of its parameters, without `target`."""
    options: Mapping[str, bool]
    """Each long option of the command -> True if a value follows it."""
    script: Sequence[str] | None
    """The script's tokens; None where the function takes none."""
    is_document: bool = False
    """True if one JSON document is all that may be printed on standard output."""


_PLAIN = (bool, str, str | None, tuple[str, ...])
"""Types of options that need no library to be read."""


def read_plain(command: Command, argv: Sequence[str]) -> Given | None:
    """Return what was given, None if it needs more to read it, or to say what is wrong with it."""
    # `inspect` takes 5 ms to import.
    kinds = {k: kind for k, kind in command.function.__annotations__.items() if k != "return"}
    if not command.takes_script or command.positionals or kinds.pop("target", None) is None:
        return None
    if any(kind not in _PLAIN for kind in kinds.values()):
        return None
    named = {f"--{name.replace('_', '-')}": name for name in kinds}
    options = {"--help": False} | {
        option: kinds[name] is not bool for option, name in named.items()
    }
    own, script = split(argv, options)
    values: dict[str, Any] = {}
    for token in own:
        option, equals, value = token.partition("=")
        name = named.get(option)
        if name is None or bool(equals) != options[option]:
            return None
        if kinds[name] == tuple[str, ...]:
            values[name] = (*values.get(name, ()), value)
        elif name in values:
            return None
        else:
            values[name] = value if equals else True
    check_values(own)
    return Given(command.function, values, options, script)


_LONGEST_NAME = 255
"""Bytes of a file's name, on the file systems that people have."""


def check_values(
    own: Iterable[str], whole: Iterable[str] = (), *, takes_text: bool = False
) -> None:
    """Refuse values that no option takes: empty ones, names too long for a file, fractions.

    Args:
        own: hotlap's tokens.
        whole: options whose value is an integer.
        takes_text: an argument of several words may be of any length.
    """
    for token in own:
        name, equals, value = token.partition("=")
        if not equals:
            name, value = "an argument", token
        if not value:
            raise UsageError(f"{name} is empty. Remove it, or give it a value.")
        longest = max(value.split(os.sep), key=len)
        count = len(os.fsencode(longest))
        is_text = takes_text and not equals and len(value.split()) > 1
        # As of --space: `lr=choice(1e-3,1e-2)` may have any number of values.
        is_text = is_text or (name == "--space" and "=" in value)
        if count > _LONGEST_NAME and not is_text:
            raise UsageError(
                f"{name} has a file name of {count} bytes, '{longest[:20]}...'. Expected: at most "
                f"{_LONGEST_NAME} bytes. Use a shorter name."
            )
        # The parser would round a fraction.
        if name in whole and not re.fullmatch(r"[+-]?\d+", value):
            raise UsageError(f"{name} {value} is not allowed. Expected: an integer.")
