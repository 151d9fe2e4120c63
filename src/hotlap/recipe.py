"""A recipe: a Python file with `task(...) -> hotlap.Task`, whose parameters can be given."""

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from hotlap.errors import HotlapError, MissingFile, UsageError
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
        from cyclopts import App, CycloptsError

        self._check_whole_numbers(arguments)
        app = App(
            name=self.path.name, help_flags=[], version_flags=[], result_action="return_value"
        )
        app.default(self.function)
        try:
            function, bound, _ = app.parse_args(
                list(arguments), exit_on_error=False, print_error=False
            )
        except CycloptsError as error:
            allowed = ", ".join(f"--{name.replace('_', '-')}" for name in self.parameters())
            raise UsageError(f"{self.path}: {error} Allowed: {allowed or 'nothing'}.") from error
        made = function(*bound.args, **bound.kwargs)
        if not isinstance(made, Task):
            raise UsageError(
                f"{self.path}: task() gave {type(made).__name__}. Allowed: a hotlap.Task."
            )
        return made

    def _check_whole_numbers(self, arguments: Sequence[str]) -> None:
        """Refuse `--epochs 2.7`, which the parser would round."""
        try:
            hints = get_type_hints(self.function)
        except NameError as error:
            raise UsageError(
                f"an annotation of {self.function.__name__}() in '{self.path}' cannot be read: "
                f"{error}. Allowed: types that the recipe knows."
            ) from error
        whole = {f"--{name.replace('_', '-')}" for name, hint in hints.items() if _rounds(hint)}
        given = " ".join(arguments).replace("=", " ").split()
        for name, value in pairwise(given):
            if name.replace("_", "-") in whole and re.fullmatch(r"-?\d*\.\d*[1-9]\d*", value):
                raise UsageError(f"{name} {value} is not allowed. Allowed: whole numbers.")


def _rounds(hint: Any) -> bool:
    """True if the parser, which takes the first type that fits, rounds a number for that hint."""
    numbers = [kind for kind in get_args(hint) or (hint,) if kind in (int, float)]
    return numbers[:1] == [int]


def is_recipe(path: str | Path) -> bool:
    """True if a Python file is a recipe, not a script. It is read, and nothing of it is run.

    A recipe defines or imports `task` at its top level, and imports hotlap there: scripts that have
    a function of that name do not.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    bound, imported = set(), set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
    return "task" in bound and "hotlap" in imported


def load(path: str | Path) -> Recipe:
    """Read a recipe file. It is imported: its own code runs, with its folder on the path.

    Raises:
        MissingFile: there is no such file.
        UsageError: it cannot be imported, or has no function `task`.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFile(f"recipe '{path}' is not there. Allowed: a Python file with `task(...)`.")
    module = _imported(path)
    function = getattr(module, "task", None)
    if not inspect.isfunction(function):
        raise UsageError(f"{path} has no function `task`. Allowed: `def task(...) -> hotlap.Task`.")
    return Recipe(path, function)


def _imported(path: Path) -> ModuleType:
    # Under a name of its own, so that worker processes find its classes again.
    name = f"hotlap_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file. Allowed: a file that ends with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except HotlapError:
        raise
    except Exception as error:
        raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
