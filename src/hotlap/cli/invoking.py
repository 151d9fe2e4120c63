"""Calls a command with its parsed options and the script; suggests options with near names."""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from hotlap.cli.command import Command, read_plain
from hotlap.cli.target import Target
from hotlap.errors import UsageError


def invoke(command: Command, argv: Sequence[str]) -> int:
    """Read the tokens behind a command's name, run the command, and return its exit code.

    Raises:
        UsageError: the command line is wrong.
    """
    given = read_plain(command, argv)
    if given is None:
        # 50 ms of imports, which `hotlap run` is better off without.
        from hotlap.cli.parser import read

        given = read(command, argv)
    values = dict(given.values)
    if given.script is not None:
        _check_folder()
        before = " ".join(["hotlap", command.name, *command.positionals])
        target = Target.parse(given.script, before).resolve()
        values["target"] = target._replace(typed=tuple(argv))
    try:
        with _document_alone(given.is_document or bool(values.get("json"))):
            return given.function(**values) or 0
    except UsageError as error:
        hint = _nearest_option((given.script or [])[1:], given.options, str(error))
        if hint is None:
            raise
        raise UsageError(
            f"{error} Or did you mean '{hint}', an option of `hotlap {command.name}`?"
        ) from error


def _document_alone(is_document: bool) -> AbstractContextManager[None]:
    """Return what keeps everything but a JSON document out of standard output."""
    if not is_document:
        return nullcontext()
    from hotlap.report.jsonout import reserve_stdout

    return reserve_stdout()


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the current folder no longer exists. Use `cd` to change to another one."
        ) from error


def _nearest_option(given: Iterable[str], options: Iterable[str], message: str) -> str | None:
    """Return the command's own option that one of the script's, named in a message, is near to."""
    import difflib

    for token in given:
        name = token.partition("=")[0]
        near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.7)
        if near and name.startswith("--") and f"'{name}'" in message:
            return near[0]
    return None
