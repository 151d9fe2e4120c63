"""Parser of a command's options and printer of its `--help`, by the library cyclopts."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError

from hotlap.cli.command import Command, Given, check_values
from hotlap.cli.target import Target, split
from hotlap.errors import UnknownName, UsageError, unknown_name


def _default_shown(value: Any) -> str | None:
    return None if value is None or value is False or value == () else str(value)


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
    app.default(_without_target(command.function) if command.takes_script else command.function)
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


def read(command: Command, argv: Sequence[str]) -> Given:
    """Return what was given behind a command's name.

    Raises:
        UsageError: it is wrong.
    """
    app = app_of(command)
    options = options_of(app)
    own, script = (
        split(argv, options, len(command.positionals)) if command.takes_script else (list(argv), [])
    )
    check_values(own, _whole_numbers(app), takes_text=command.takes_text)
    try:
        function, bound, unread = app.parse_args(own, exit_on_error=False, print_error=False)
    except UnknownOptionError as error:
        given = (error.token.keyword or error.token.value).partition("=")[0]
        message = unknown_name(given, options, "option")
        if command.takes_script:
            message += " Write the script's own options after SCRIPT."
        raise UnknownName(message) from error
    except CycloptsError as error:
        allowed = ", ".join(sorted(options))
        raise UsageError(
            f"{str(error).rstrip('.')}. Check the arguments; the options of `hotlap "
            f"{command.name}` are {allowed}."
        ) from error
    called = functools.partial(function, *bound.args, **bound.kwargs)
    is_document = bool(bound.arguments.get("json"))
    return Given(called, {}, options, script if "target" in unread else None, is_document)


def _without_target(function: Callable[..., int]) -> Callable[..., int]:
    """Return the function as the library is to see it: `target` is read by `split`."""

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> int:
        return function(*args, **values)

    target = Annotated[Target, Parameter(parse=False)]
    call.__annotations__ = {**function.__annotations__, "target": target}
    signature = inspect.signature(function)
    vars(call)["__signature__"] = signature.replace(
        parameters=[
            each.replace(annotation=call.__annotations__[name])
            for name, each in signature.parameters.items()
        ]
    )
    return call


def _whole_numbers(app: App) -> set[str]:
    collection = app.assemble_argument_collection()
    whole = (int, int | None)
    return {name for argument in collection if argument.hint in whole for name in argument.names}
