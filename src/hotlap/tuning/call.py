"""`hotlap.tune`: what `hotlap tune RECIPE` does, from Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotlap.host.facts import Host
from hotlap.lab.call_arguments import check_call, recipe_path, to_command_line
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.task import Task
from hotlap.tuning.fitting import fit_plain, on_base
from hotlap.tuning.kept_tunings import kept_tuning
from hotlap.tuning.result import Tuning
from hotlap.tuning.stages import check_request
from hotlap.tuning.stages import tune as search


def tune(
    task: str | os.PathLike[str] | Callable[..., Task],
    *,
    arguments: Mapping[str, Any] | None = None,
    budget: float = 180.0,
    accept: str = "rounding",
    only: Sequence[str] | None = None,
    aim: str = "run",
    steps: int | None = None,
    memory: int | None = None,
    again: bool = False,
    techniques: Sequence[str] = (),
    device: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Find the fastest plan for a task by measured trials, and prove it.

    Every trial is a fresh process that makes the task again, so what is given is the recipe that
    makes it, not the task: functions that live in this process cannot be carried into another.

    Args:
        task: the path of a recipe, or its function `task`.
        arguments: what the function is called with, by name.
        budget: seconds that everything may take together.
        accept: the weakest verdict that is good enough: `exact`, `rounding` or `statistical`.
        only: names of the techniques that may be used, all if None.
        aim: `run` for the plan that saves most over the whole run, `steady` for the fastest steps.
        steps: that are watched, and that a proof follows, at most; 64 or more.
        memory: bytes that a plan may hold at once, None for any number. A recipe that does not fit
            is tuned in micro-batches that do.
        again: measure everything again, whatever an earlier tuning of the same measured.
        techniques: techniques from outside, as `module:NAME`, importable in a fresh process.
        device: as torch names it; the first accelerator if None, else the CPU.
        progress: called with a line now and then.

    Raises:
        UsageError: what was given is no recipe, or the recipe is wrong.
        TrialError: the plain recipe itself cannot be measured.

    >>> hotlap.tune("recipe.py", budget=120).plan             # doctest: +SKIP
    """
    check_call("hotlap.tune", budget)
    path = recipe_path(task, "hotlap.tune")
    check_request(accept, only or (), techniques, aim=aim, steps=steps)
    run = RecipeRun(
        path=str(path), args=to_command_line(arguments or {}), cwd=os.getcwd(), device=device
    )
    host = Host.detect()
    fitted = fit_plain(
        run, host, memory, accept=accept, again=again, techniques=techniques, progress=progress
    )
    run = fitted.subject
    asked = {"accept": accept, "only": only, "for": aim, "steps": steps, "hide": ()}
    asked["memory"] = memory
    kept = kept_tuning(run, host, {**asked, "techniques": techniques}, again=again)
    found = kept.result_for(budget)
    if found is not None:
        return on_base(found, fitted)
    with Lab(run, techniques=tuple(techniques)) as lab:
        found = search(
            lab,
            host,
            budget_s=budget,
            accept=accept,
            only=only,
            aim=aim,
            steps=steps,
            kept=kept,
            memory=memory,
            progress=progress,
        )
    return on_base(found, fitted)
