"""Loads a recipe, a file with `task(...) -> hotlap.Task`; parses options for its parameters."""

import ast
import functools
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hotlap.errors import (
    HotlapError,
    MissingFile,
    SignalExit,
    UnknownName,
    UsageError,
    unknown_name,
)
from hotlap.task import Task


@dataclass(frozen=True)
class Recipe:
    """A recipe file that was read."""

    path: Path
    function: Callable[..., Any]

    def parameters(self) -> tuple[str, ...]:
        """Return the names of what can be given."""
        return tuple(inspect.signature(self.function).parameters)

    def task(self, arguments: Sequence[str] = ()) -> Task:
        """Return the task for arguments as a command line gives them, `--lr 3e-4`.

        Raises:
            UsageError: an argument is not the recipe's, has a wrong value, or the task is wrong.
        """
        bound = self._bind(arguments, self.function)
        try:
            made = self.function(*bound.args, **bound.kwargs)
        except SignalExit:
            raise
        except SystemExit as error:
            raise UsageError(_exit_message(self.path, error, "in task()")) from error
        if not isinstance(made, Task):
            raise UsageError(
                f"{self.path}: task() returned {type(made).__name__}. Expected: a hotlap.Task, as "
                "in `return hotlap.Task(...)`."
            )
        return made

    def values(self, arguments: Sequence[str] = ()) -> dict[str, Any]:
        """Return the value of each parameter for arguments as `task` takes them.

        Raises:
            UsageError: an argument is not the recipe's, or has a wrong value.
        """
        bound = self._bind(arguments, self.function)
        bound.apply_defaults()
        return dict(bound.arguments)

    def given_values(self, arguments: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the names of what is given, and the value of each parameter that has one.

        Raises:
            UsageError: an argument is not the recipe's, or has a wrong value.
        """
        signature = inspect.signature(self.function)
        parameters = signature.parameters.values()
        required = [each.name for each in parameters if each.default is each.empty]

        @functools.wraps(self.function)
        def stand_in(*_: Any, **__: Any) -> None:
            return None

        # What has no default may be given later.
        optional = [
            each.replace(default=None) if each.name in required else each for each in parameters
        ]
        vars(stand_in)["__signature__"] = signature.replace(parameters=optional)
        bound = self._bind(arguments, stand_in)
        given = tuple(bound.arguments)
        bound.apply_defaults()
        missing = {*required} - {*given}
        return given, {k: v for k, v in bound.arguments.items() if k not in missing}

    def _bind(
        self, arguments: Sequence[str], function: Callable[..., Any]
    ) -> inspect.BoundArguments:
        """Return what a command line binds the parameters of a function like the recipe's to."""
        from cyclopts import App, CycloptsError, UnknownOptionError

        self._check_annotations()
        app = App(
            name=self.path.name,
            help_flags=[],
            version_flags=[],
            result_action="return_value",
            # It sees what was given before that is converted.
            config=_refuse_fractions,
        )
        app.default(function)
        try:
            _, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
        except UnknownOptionError as error:
            given = error.token.keyword or error.token.value
            message = unknown_name(given, self._options(), f"{self.path}: option")
            if not self.parameters():
                message = (
                    f"{self.path}: option '{given}' is not known, as task() has no parameters. "
                    "Remove the option, or add a parameter, as in `def task(*, lr: float = 0.1)`."
                )
            raise UnknownName(message) from error
        except CycloptsError as error:
            allowed = ", ".join(self._options())
            raise UsageError(
                f"{self.path}: {str(error).rstrip('.')}. Check the arguments after the recipe; the "
                f"options that its task() takes are {allowed or 'none'}."
            ) from error
        return bound

    def _options(self) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name in self.parameters()]

    def _check_annotations(self) -> None:
        """Refuse an annotation that names nothing."""
        try:
            get_type_hints(self.function)
        except NameError as error:
            raise UsageError(
                f"an annotation of {self.function.__name__}() in '{self.path}' cannot be resolved: "
                f"{error}. Import the type, or remove the annotation."
            ) from error


def _refuse_fractions(app: Any, commands: Any, arguments: Any) -> None:
    """Refuse `--epochs 2.7`, which the parser would round; it calls this with all that was given.

    Seen are positional values and fields of dataclasses too, and parameters without a type, for
    which the parser takes that of the default.
    """
    del app, commands
    for argument in arguments:
        for place, token in enumerate(argument.tokens):
            if not _rounds(argument.hint, place) or not _has_fraction(token.value):
                continue
            keyword = token.keyword or ""
            name = keyword if keyword.startswith("--") else argument.name
            raise UsageError(
                f"{name} {token.value} is not allowed. Expected: an integer"
                f"{_why_an_integer(argument.field_info)}."
            )


def _why_an_integer(field: Any) -> str:
    """Return why the parser takes a parameter without a type for an integer, empty with one."""
    if field.annotation is not inspect.Parameter.empty:
        return ""
    return (
        f", like its default {field.default!r}, as it has no type. Write `{field.name}: float = "
        f"{field.default!r}` in task() if it may have a fraction"
    )


def _rounds(hint: Any, place: int = 0) -> bool:
    """True if the parser, which takes the first type that fits, rounds a number for that hint.

    Args:
        hint: of a parameter.
        place: of the number, among all that the parameter was given.
    """
    if hint is int:
        return True
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not Ellipsis]
    if origin in (Union, UnionType):
        # What takes a fraction as it is, before or behind what rounds it.
        fitting = [part for part in parts if part in (float, str) or _rounds(part, place)]
        return bool(fitting) and fitting[0] not in (float, str)
    if not parts:
        return False
    if origin is tuple:
        return _rounds(parts[place % len(parts)])
    # Of a dict the values.
    return _rounds(parts[0 if origin is Annotated else -1], place)


def _has_fraction(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return not math.isfinite(value) or not value.is_integer()


@contextmanager
def as_command_line(path: str | Path, arguments: Sequence[str]) -> Iterator[None]:
    """Let `sys.argv` be what it would be if Python ran the recipe: its path and its arguments.

    A recipe that reads the command line itself, or imports a module that does, must not read
    hotlap's.
    """
    before = sys.argv
    sys.argv = [str(path), *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _exit_message(path: Path, error: SystemExit, when: str) -> str:
    """Return why a recipe that raised SystemExit cannot be trained."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename.endswith("argparse.py") for frame in frames):
        return (
            f"{path} reads the command line with argparse {when}, which ended the process. "
            "Expected: arguments as parameters of task(), as in `def task(*, lr: float = 0.1)`, "
            "which `--lr 0.3` sets. Move argparse below `if __name__ == '__main__':`."
        )
    code = "" if error.code is None else repr(error.code)
    return (
        f"{path} called sys.exit({code}) {when}, at line {_line_in(path, frames)}, so there is no "
        "hotlap.Task to train. Remove the call, or raise an exception instead."
    )


def _line_in(path: Path, frames: Sequence[traceback.FrameSummary]) -> int | None:
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    return lines[-1] if lines else frames[-1].lineno


def load(path: str | Path) -> Recipe:
    """Read a recipe file. It is imported: its own code runs, with its folder on the path.

    Raises:
        MissingFile: there is no such file.
        UsageError: it cannot be imported, or has no function `task`.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFile(
            f"recipe '{path}' was not found. Expected: a Python file with `def task(...)`."
        )
    _check_names_task(path)
    module = _import_recipe(path)
    function = getattr(module, "task", None)
    if not inspect.isfunction(function):
        kind = type(function).__name__
        found = "no function `task`" if function is None else f"a `task` of type {kind}"
        raise UsageError(
            f"recipe '{path}' has {found}. Expected: a function `def task(...) -> hotlap.Task`. "
            f"Add it, or use `hotlap run {path}` if the file is a script."
        )
    return Recipe(path, function)


def _check_names_task(path: Path) -> None:
    """Refuse a file that cannot have a `task` before it is imported: a script would train."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # The import says what is wrong.
        return
    names = {name for node in ast.walk(tree) for name in _names_in(node)}
    if not names & {"task", "*"}:
        raise UsageError(
            f"'{path}' has no function `task`, so it is not a recipe, and was not imported. Add "
            f"`def task(...) -> hotlap.Task`, or use `hotlap run {path}` if it is a script."
        )


def _names_in(node: ast.AST) -> tuple[Any, ...]:
    if isinstance(node, ast.alias):
        return (node.asname or node.name,)
    # A definition, a name that is assigned, or a text given to setattr.
    return tuple(getattr(node, key, None) for key in ("name", "id", "value"))


def _import_recipe(path: Path) -> ModuleType:
    # Under a name of its own, so that worker processes find its classes again.
    name = f"hotlap_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file. Expected: a file that ends with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (HotlapError, SignalExit):
        raise
    except SystemExit as error:
        raise UsageError(_exit_message(path, error, "while it was imported")) from error
    except Exception as error:
        raise UsageError(
            f"'{path}' cannot be imported: {type(error).__name__}: {error}.\n"
            f"Run `python {path}` to see the traceback."
        ) from error
    return module
