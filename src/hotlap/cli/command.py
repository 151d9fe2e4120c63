"""What a command is, and how its command line is read."""

import difflib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, Token, UnknownOptionError

from hotlap.cli.durations import parse_duration
from hotlap.cli.target import Target, split
from hotlap.errors import UnknownName, UsageError, unknown_name

EXIT_CODES = (
    "0: done. 2: the input is wrong, nothing was started. 130, 143, 129: ended by Ctrl-C, SIGTERM, "
    "SIGHUP. 1: any other error."
)

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


def _default_shown(value: Any) -> str | None:
    return None if value is None or value is False or value == () else str(value)


Duration = Annotated[
    float,
    Parameter(
        converter=_duration, n_tokens=1, metavar="TIME", show_default=lambda value: f"{value:g}s"
    ),
]
"""An option that is given as `90`, `90s`, `2m` or `1h`; the function gets seconds."""

ScriptTarget = Annotated[Target, Parameter(parse=False)]
"""The script of a command with `takes_script`; the parameter must be named `target`."""


@dataclass(frozen=True)
class Command:
    """One command of the command line; each module of a command holds one, named `COMMAND`."""

    name: str
    function: Callable[..., int]
    """Its parameters are the options, its docstring is the help; it returns the exit code."""
    examples: tuple[str, ...]
    """Command lines that work, each with what it does behind a `#`."""
    takes_script: bool = False
    """True if `SCRIPT [ARGS]` follows: the function then has a keyword `target: ScriptTarget`."""
    exit_codes: str = EXIT_CODES
    positionals: tuple[str, ...] = ()
    """What stands before SCRIPT, in capitals."""


def app_of(command: Command) -> App:
    """Return the parser of one command."""
    before = "".join(f" {name}" for name in command.positionals)
    arguments = f" [OPTIONS]{before} SCRIPT [ARGS]" if command.takes_script else None
    lines = "\n".join(f"  {line}" for line in command.examples)
    app = App(
        name=f"hotlap {command.name}",
        usage=f"Usage: hotlap {command.name}{arguments}" if arguments else None,
        help=_description(command.function),
        help_format="plaintext",
        help_epilogue=f"Examples:\n{lines}\n\nExit codes: {command.exit_codes}",
        version_flags=[],
        default_parameter=Parameter(negative="", show_default=_default_shown),
        result_action="return_value",
    )
    app.default(command.function)
    return app


def _description(function: Callable[..., int]) -> str:
    """Return a docstring's paragraphs before its parameters, each on one line."""
    lines: list[str] = []
    for paragraph in (inspect.getdoc(function) or "").split("\n\n"):
        if paragraph.startswith(("Parameters\n---", "Args:")):
            break
        lines.append(" ".join(paragraph.split()))
    return "\n\n".join(lines)


def options_of(app: App) -> dict[str, bool]:
    """Return each long option of a command -> True if a value follows it."""
    options = {"--help": False}
    for argument in app.assemble_argument_collection():
        if argument.parse:
            takes_value = argument.token_count()[0] > 0
            options |= {name: takes_value for name in argument.names if name.startswith("--")}
    return options


def invoke(command: Command, argv: Sequence[str]) -> int:
    """Read the tokens behind a command's name, run the command, and return its exit code.

    Raises:
        UsageError: the command line is wrong.
    """
    app = app_of(command)
    options = options_of(app)
    own, script = (
        split(argv, options, len(command.positionals)) if command.takes_script else (list(argv), [])
    )
    _check_values(own, _whole_numbers(app))
    try:
        function, bound, unread = app.parse_args(own, exit_on_error=False, print_error=False)
    except UnknownOptionError as error:
        given = (error.token.keyword or error.token.value).partition("=")[0]
        raise UnknownName(unknown_name(given, options, "option")) from error
    except CycloptsError as error:
        allowed = ", ".join(sorted(options))
        raise UsageError(f"{str(error).rstrip('.')}. Expected options: {allowed}.") from error
    if "target" in unread:
        _check_folder()
        bound.arguments["target"] = Target.parse(script).resolve()
    try:
        return function(*bound.args, **bound.kwargs) or 0
    except UsageError as error:
        hint = _meant(script[1:], options, str(error))
        if hint is None:
            raise
        raise UsageError(
            f"{error} Or did you mean '{hint}', an option of `hotlap {command.name}`?"
        ) from error


def _whole_numbers(app: App) -> set[str]:
    collection = app.assemble_argument_collection()
    return {name for argument in collection if argument.hint is int for name in argument.names}


_LONGEST_NAME = 255
"""Bytes of a file's name, on the file systems that people have."""


def _check_values(own: Iterable[str], whole: set[str]) -> None:
    """Refuse values that no option takes: empty ones, names too long for a file, fractions."""
    for token in own:
        name, equals, value = token.partition("=")
        if not equals:
            name, value = "an argument", token
        if not value:
            raise UsageError(f"{name} is empty. Remove it, or give it a value.")
        longest = max(value.split(os.sep), key=len)
        count = len(os.fsencode(longest))
        if count > _LONGEST_NAME:
            raise UsageError(
                f"{name} has a file name of {count} bytes, '{longest[:20]}...'. Expected: at most "
                f"{_LONGEST_NAME} bytes."
            )
        # The parser would round a fraction.
        if name in whole and not re.fullmatch(r"[+-]?\d+", value):
            raise UsageError(f"{name} {value} is not allowed. Expected: an integer.")


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the current folder no longer exists. Use `cd` to change to another one."
        ) from error


def _meant(given: Iterable[str], options: Iterable[str], message: str) -> str | None:
    """Return the command's own option that one of the script's, named in a message, is near to."""
    for token in given:
        name = token.partition("=")[0]
        near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.7)
        if near and name.startswith("--") and f"'{name}'" in message:
            return near[0]
    return None
