"""`hotlap.tune`: what `hotlap tune RECIPE` does, from Python."""

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError
from hotlap.host import Host
from hotlap.lab.recipes import IN_TRIAL, RecipeRun
from hotlap.lab.trial import Lab
from hotlap.recipe import is_recipe
from hotlap.task import Task
from hotlap.tuning.result import Tuning
from hotlap.tuning.search import check_request
from hotlap.tuning.search import tune as search

_FORMS = (
    "Allowed: the path of a recipe, or its function: `hotlap.tune(task)`, where `def task(...) -> "
    "hotlap.Task` stands at the top level of a file that imports hotlap."
)


def tune(
    task: str | os.PathLike[str] | Callable[..., Task],
    *,
    arguments: Mapping[str, Any] | None = None,
    budget: float = 180.0,
    accept: str = "rounding",
    only: Sequence[str] | None = None,
    techniques: Sequence[str] = (),
    device: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Find the fastest plan for a task by measured trials, and prove it.

    Every trial is a fresh process that makes the task anew, so what is given is the recipe that
    makes it, not the task: functions that live in this process cannot be carried into another.

    Args:
        task: the path of a recipe, or its function `task`.
        arguments: what the function is called with, by name.
        budget: seconds that everything may take together.
        accept: the weakest verdict that is good enough: `exact`, `rounding` or `statistical`.
        only: names of the techniques that may be used, all if None.
        techniques: techniques from outside, as `module:NAME`, importable in a fresh process.
        device: as torch names it; the first accelerator if None, else the CPU.
        progress: called with a line now and then.

    Raises:
        UsageError: what was given is no recipe, or the recipe is wrong.
        TrialError: the plain recipe itself cannot be measured.

    >>> hotlap.tune("recipe.py", budget=120).plan             # doctest: +SKIP
    """
    if os.environ.get(IN_TRIAL):
        raise UsageError(
            "hotlap.tune was called while a trial imports the recipe, and would go on so. Allowed: "
            "below `if __name__ == '__main__':`."
        )
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not is_number or not 0 < budget < math.inf:
        raise UsageError(f"budget={budget!r} is not allowed. Allowed: seconds, above 0.")
    path = _path_of(task)
    check_request(accept, only or (), techniques)
    run = RecipeRun(path=str(path), args=_as_typed(arguments or {}), cwd=os.getcwd(), device=device)
    with Lab(run, techniques=tuple(techniques)) as lab:
        return search(
            lab, Host.detect(), budget_s=budget, accept=accept, only=only, progress=progress
        )


def _path_of(task: Any) -> Path:
    if isinstance(task, Task):
        raise UsageError(
            f"a Task was given: its functions live in this process only, and a trial is a fresh "
            f"one. {_FORMS}"
        )
    if inspect.isfunction(task):
        file = inspect.getsourcefile(task)
        if task.__qualname__ != "task" or file is None or not is_recipe(file):
            raise UsageError(f"the function '{task.__qualname__}' was given. {_FORMS}")
        return Path(file)
    if not isinstance(task, str | os.PathLike):
        raise UsageError(f"{type(task).__name__} was given. {_FORMS}")
    path = Path(task)
    if not path.is_file():
        raise MissingFile(f"recipe '{path}' is not there. {_FORMS}")
    if not is_recipe(path):
        raise UsageError(f"'{path}' is no recipe. {_FORMS}")
    return path


def _as_typed(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments as a command line gives them."""
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in arguments.items())
