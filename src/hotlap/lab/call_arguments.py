"""Checks what a Python caller gives `hotlap.tune` and the like: budget, and recipe or its path."""

import inspect
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError
from hotlap.recipe_detection import is_recipe
from hotlap.task import Task
from hotlap.trial.protocol import IN_TRIAL


def check_call(name: str, budget: Any) -> None:
    """Refuse a call from inside a trial, and a budget that is none.

    Args:
        name: the function that was called, as in `hotlap.tune`.
        budget: seconds, as the caller gave them.

    Raises:
        UsageError: either is wrong.
    """
    if os.environ.get(IN_TRIAL):
        raise UsageError(
            f"{name} was called while a trial imports the recipe, so it would start trials without "
            f"end. Move the call of {name} in the recipe below `if __name__ == '__main__':`."
        )
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not is_number or not 0 < budget < math.inf:
        raise UsageError(
            f"budget={budget!r} is not allowed. Expected: a finite number of seconds above 0."
        )


def recipe_path(task: Any, name: str) -> Path:
    """Return the file of a recipe that is given as a path, or as its function.

    Args:
        task: what the caller gave.
        name: the function that was called, as in `hotlap.tune`.

    Raises:
        UsageError: it is no recipe.
        MissingFile: there is no such file.
    """
    forms = (
        f"the path of a recipe, or its function, as in `{name}(task)` with `def task(...) -> "
        "hotlap.Task` at the top level of a file that imports hotlap"
    )
    if isinstance(task, Task):
        raise UsageError(
            f"{name} was given a Task, whose functions exist only in this process, but every trial "
            f"is a new process. Expected: {forms}."
        )
    if inspect.isfunction(task):
        file = inspect.getsourcefile(task)
        if task.__qualname__ != "task" or file is None or not is_recipe(file):
            raise UsageError(
                f"{name} was given the function '{task.__qualname__}'. Expected: {forms}."
            )
        return Path(file)
    if not isinstance(task, str | os.PathLike):
        raise UsageError(
            f"{name} was given a value of type {type(task).__name__}. Expected: {forms}."
        )
    path = Path(task)
    if not path.is_file():
        raise MissingFile(f"recipe '{path}' was not found. Expected: {forms}.")
    if not is_recipe(path):
        raise UsageError(
            f"'{path}' is not a recipe: it defines no `task`, or does not import hotlap. Expected: "
            f"{forms}."
        )
    return path


def to_command_line(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a recipe's arguments as a command line gives them."""
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in arguments.items())
