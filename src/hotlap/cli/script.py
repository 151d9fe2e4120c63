"""Makes a script, recipe or task of SCRIPT; reads plan files, `--steps` and the host."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotlap.cli.starting import say, script_of
from hotlap.cli.target import Target
from hotlap.errors import MissingFile, RunError, SignalExit, UsageError
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun, Subject
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.recipe import as_command_line, load
from hotlap.recipe_detection import is_recipe
from hotlap.task import Task
from hotlap.techniques import check, registry
from hotlap.usercode import is_users

_LEAST_STEPS = 16


def script_or_recipe(target: Target, python: str) -> Subject:
    """Return what is started in the current folder: a recipe if the file is one, else a script.

    Raises:
        MissingFile: there is no such Python.
    """
    script = script_of(target, python)
    if script.path is None or not is_recipe(script.path):
        return script
    return RecipeRun(path=script.path, args=script.args, python=python, cwd=script.cwd)


def recipe_of(target: Target) -> str:
    """Return the path of the recipe that was given.

    Raises:
        UsageError: a module or a command was given.
    """
    if target.script is None:
        given = f"`{target.program}` is a command" if target.program else f"`{target}` is a module"
        raise UsageError(
            f"{given}, not a recipe. Expected: the path of a recipe, a Python file that defines "
            "`task()`."
        )
    return target.script


class StartFolder:
    """The current folder before a recipe is imported: the recipe may change to another one."""

    def __init__(self) -> None:
        self.folder = os.getcwd()

    def path(self, given: str | None) -> str | None:
        """Return a path of the command line as it leads to the same file now."""
        if given is None or os.getcwd() == self.folder:
            return given
        return os.path.join(self.folder, given)


@contextmanager
def task_of(target: Target) -> Iterator[Task]:
    """Give the task of the recipe that was given, see `task_and_values_of`."""
    with task_and_values_of(target) as (task, _):
        yield task


@contextmanager
def task_and_values_of(target: Target) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Give the task of the recipe that was given, and the values of the recipe's parameters.

    While they are used, `sys.argv` is the recipe's.

    Raises:
        MissingFile: there is no such file.
        UsageError: it is no recipe, or its arguments are wrong.
        RunError: the recipe's own code called `sys.exit` while the task was used.
    """
    path = recipe_of(target)
    with as_command_line(path, target.args):
        try:
            recipe = load(path)
            task = recipe.task(target.args)
        except StopIteration as error:
            # It would end this generator silently.
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise UsageError(
                f"the recipe raised StopIteration at {last.filename}:{last.lineno}: `next(...)` "
                "was called on an exhausted iterator. Check that the iterator has another item, "
                "or pass a default, as in `next(items, None)`."
            ) from error
        try:
            yield task, recipe.values(target.args)
        except SystemExit as error:
            frames = traceback.extract_tb(error.__traceback__)
            users = [frame for frame in frames if is_users(frame.filename)]
            if not users or isinstance(error, SignalExit):
                raise
            last = users[-1]
            raise RunError(
                f"the recipe called sys.exit({'' if error.code is None else repr(error.code)}) at "
                f"{last.filename}:{last.lineno}, before the work was done. Remove the call, or "
                "raise an exception instead."
            ) from error


def plan_given(given: str, techniques: tuple[str, ...] = ()) -> PlanFile:
    """Return the plan file that was given, an empty one for the word `plain`.

    Raises:
        MissingFile: there is no such file.
        PlanError: it holds what no plan holds.
    """
    if given == "plain":
        return PlanFile(Plan())
    if not os.path.isfile(given):
        raise MissingFile(
            f"plan file '{given}' was not found. Expected: the path of a plan file, or the word "
            "`plain` for no plan. Run `hotlap tune SCRIPT` to write a plan file."
        )
    file = PlanFile.read(Path(given))
    check(file.plan, registry(techniques))
    return file


def steps_given(steps: int) -> int:
    """Return the steps that a proof was told to follow.

    Raises:
        UsageError: they are too few to prove anything.
    """
    if steps < _LEAST_STEPS:
        raise UsageError(f"--steps {steps} is not allowed. Expected: {_LEAST_STEPS} or more.")
    return steps


def detect_host() -> Host:
    """Return this host, and say so if others keep it busy: times are noisy then."""
    host = Host.detect()
    if host.load:
        say(f"{host.load}: times will be noisy, and small gains may not be detected")
    return host
