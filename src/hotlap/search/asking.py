"""Makes a `SearchSpec` of what was asked, and refuses what cannot be searched before it starts."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.attach.plan_choice import choose
from hotlap.errors import UsageError, unknown_name
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun
from hotlap.plan import Plan
from hotlap.recipe import Recipe, as_command_line, load
from hotlap.search.parameters import Space, read_space, words_of
from hotlap.search.propose import configurations, grid_points
from hotlap.search.result import LEAST_SEEDS
from hotlap.search.spec import (
    STOPS_EARLY,
    Objective,
    SearchSpec,
    check_method,
    check_schedule,
    rungs_of,
)

_TRIALS = 24
_BUILT_IN = ("loss", "seconds", "memory")


@dataclass(frozen=True)
class Request:
    """What a search is asked for; None for what follows from the recipe or the method."""

    recipe: str
    args: tuple[str, ...] = ()
    method: str = "asha"
    trials: int | None = None
    max_steps: int | None = None
    grace: int | None = None
    reduction: int = 3
    schedule: str = "whole"
    workers: int = 1
    seed: int = 0
    seeds: int = 3
    objectives: tuple[str, ...] = ("loss",)
    """As `Objective.parse` reads them."""
    space: tuple[str, ...] = ()
    """`NAME=KIND(VALUES)`."""
    points: int = 3
    memory_bytes: int | None = None
    plan: str = "auto"
    device: str | None = None
    threads: int | None = None
    """Of each trial; the cores, divided by the workers, if None."""


@dataclass(frozen=True)
class Asked:
    """A search that can be made."""

    spec: SearchSpec
    space: Space
    notes: tuple[str, ...]
    """What the user should know of it, in words."""


def ask(request: Request, host: Host) -> Asked:
    """Return the search that was asked for.

    Raises:
        UsageError: it cannot be made; the message says why.
    """
    _check(request)
    objectives = _objectives(request)
    # The trials begin in this folder too, and the recipe may change to another one.
    with as_command_line(request.recipe, request.args), chdir(os.getcwd()):
        recipe = load(request.recipe)
        space = read_space(recipe, request.args, request.space)
        task = recipe.task([*request.args, *_first_words(space)])
    trials, few = _trials(request, space)
    notes = [*few]
    notes += [note for each in objectives for note in _check_objective(each, task)]
    if request.schedule == "rung" and task.schedule is None:
        notes.append("the task has no schedule, so --schedule rung changes nothing")
    plan, line = _plan(request, host)
    spec = SearchSpec(
        recipe=request.recipe,
        args=request.args,
        space=space.to_json(),
        defaults=space.defaults,
        rungs=rungs_of(request.method, _max_steps(request, task), request.grace, request.reduction),
        is_own_length=request.max_steps is None,
        method=request.method,
        trials=trials,
        reduction=request.reduction,
        schedule=request.schedule,
        objective=objectives[0],
        more=objectives[1:],
        seed=request.seed,
        seeds=request.seeds,
        points=request.points,
        memory_bytes=request.memory_bytes,
        plan=plan.techniques,
        device=request.device,
        threads=request.threads or max(1, host.cores // request.workers),
        digest=_digest(recipe),
    )
    return Asked(spec, space, (line, *notes))


def _check(request: Request) -> None:
    check_method(request.method)
    check_schedule(request.schedule)
    if request.method == "tpe":
        from hotlap.search.tpe import load_optuna

        load_optuna()
    for name, least in (("workers", 1), ("seeds", 0), ("points", 1), ("seed", 0)):
        if getattr(request, name) < least:
            raise UsageError(
                f"--{name} {getattr(request, name)} is not valid. Expected: {least} or more."
            )
    if 0 < request.seeds < LEAST_SEEDS:
        raise UsageError(
            f"--seeds {request.seeds} is too few to tell a gain from the noise of seeds. Expected: "
            f"{LEAST_SEEDS} or more, or 0 for no repetitions."
        )
    if request.trials is not None and request.trials < 1:
        raise UsageError(f"--trials {request.trials} is not valid. Expected: 1 or more.")


def _objectives(request: Request) -> tuple[Objective, ...]:
    found = tuple(map(Objective.parse, request.objectives))
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"--objective names '{name}' {names.count(name)} times. Expected: each objective "
                "once, as in --objective loss --objective seconds."
            )
    return found


def _first_words(space: Space) -> Sequence[str]:
    """Return what the recipe needs to make a task, where it has no defaults."""
    if space.defaults is not None:
        return ()
    return words_of(next(space.examples()))


def _trials(request: Request, space: Space) -> tuple[int, list[str]]:
    """Return the number of trials, and what to say where these are fewer than were wanted."""
    wanted, own = request.trials, int(space.defaults is not None)
    if request.method == "grid":
        count = len(grid_points(space, request.points)) + own
        return (count if wanted is None else min(wanted, count)), []
    wanted = _TRIALS if wanted is None else wanted
    # No configuration is trained twice.
    found = configurations(space, wanted)
    count = sum(values != space.defaults for values in found or ()) + own
    if not found or count >= wanted:
        return wanted, []
    return count, [f"the space has {count} configurations, so there are {count} trials"]


def _max_steps(request: Request, task: Any) -> int:
    total = task.total_steps
    if request.max_steps is None:
        if total is None:
            raise UsageError(
                "the data of the recipe's task is a stream of unknown length, so the number of "
                "steps of a whole trial is unknown. Pass this number with --max-steps N."
            )
        return total
    if total is not None and request.max_steps > total:
        raise UsageError(
            f"--max-steps {request.max_steps} is more than the {total} steps of the recipe's task. "
            f"Pass --max-steps {total} or less, or make the task longer with an argument of the "
            "recipe's own, such as --epochs if task() has one."
        )
    return request.max_steps


def _check_objective(objective: Objective, task: Any) -> list[str]:
    """Refuse an objective that the task does not measure, as far as it says what it measures."""
    known = {*_BUILT_IN, *task.metrics}
    if task.evaluate is None and objective.name not in known:
        raise UsageError(
            f"{unknown_name(objective.name, known, '--objective: measure')} To use another "
            "measure, add it to `metrics` of the hotlap.Task in the recipe."
        )
    if task.held_out is None and objective.name == "loss":
        return [
            "the task has no held_out samples: trials are compared by their training loss, which "
            "does not show overfitting"
        ]
    return []


def _plan(request: Request, host: Host) -> tuple[Plan, str]:
    """Return the plan of all trials, and the line that says which one it is."""
    run = RecipeRun(path=request.recipe, args=request.args, device=request.device)
    chosen = choose(run, request.plan, cpu=host.cpu, torch=host.torch or "", by_hand=True)
    if request.workers > 1 and "threads" in chosen.plan.techniques:
        # It was tuned for one process that has all cores.
        rest = {k: v for k, v in chosen.plan.techniques.items() if k != "threads"}
        why = f"without threads, as {request.workers} workers share cores"
        return Plan(rest), f"{chosen.line}; {why}"
    return chosen.plan, chosen.line


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(Path(recipe.path).read_bytes()).hexdigest()


def describe(spec: SearchSpec) -> str:
    """Return the search in one line."""
    names = ", ".join(spec.space)
    rungs = " -> ".join(f"{rung:,}" for rung in spec.rungs)
    all_of = ", ".join(map(str, spec.objectives))
    what = f"objective{'s' if spec.more else ''} {all_of}"
    stops = f"compared after {rungs} steps" if spec.method in STOPS_EARLY else f"{rungs} steps each"
    if spec.is_own_length:
        stops += " (as many as the recipe's own configuration, or the same shares)"
    return f"{spec.trials} trials of {names} by {spec.method}, {stops}, {what}"
