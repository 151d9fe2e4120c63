"""`hotlap search`: its options, its live table, and `--range-test` for a learning rate."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.cli import train
from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag
from hotlap.cli.page import PageFile, check_page, made_on, signed, write_page
from hotlap.cli.parser import app_of, options_of
from hotlap.cli.script import recipe_of, task_and_values_of
from hotlap.cli.starting import say
from hotlap.cli.target import Target, split
from hotlap.errors import UsageError

_OF_RANGE_TEST = ("--range-test", "--plan", "--device", "--json")


def search(
    *,
    target: Target,
    method: Annotated[
        str, Parameter(help="asha, hyperband, random, grid or tpe (which needs optuna).")
    ] = "asha",
    trials: Annotated[
        int | None, Parameter(help="Configurations to try; 24, or all points of a grid.")
    ] = None,
    space: tuple[str, ...] = (),
    objective: tuple[str, ...] = ("loss",),
    max_steps: Annotated[
        int | None, Parameter(help="Optimizer steps of a whole trial; the task's if not given.")
    ] = None,
    grace: Annotated[
        int | None,
        Parameter(help="Steps before a trial may be stopped; max-steps / reduction^2 by default."),
    ] = None,
    reduction: Annotated[
        int, Parameter(help="One of this many trials continues from a rung to the next one.")
    ] = 3,
    schedule: Annotated[
        str,
        Parameter(
            help="whole: trials keep the schedule of the whole run; rung: it ends where trials are "
            "compared, and is longer after a promotion."
        ),
    ] = "whole",
    workers: Annotated[int, Parameter(help="Trials at a time; they divide the cores.")] = 1,
    seed: Annotated[int, Parameter(help="Of the configurations; trials have the task's.")] = 0,
    seeds: Annotated[
        int, Parameter(help="Other seeds that the best configurations are repeated with.")
    ] = 3,
    points: Annotated[
        int, Parameter(help="With --method grid: values of each continuous parameter.")
    ] = 3,
    memory: Annotated[
        str | None, Parameter(help="Trials that hold more are no candidates, as in 2GiB.")
    ] = None,
    plan: Annotated[
        str, Parameter(help="Of all trials: a plan file, or `auto` for the tuned one.")
    ] = "auto",
    device: Annotated[str | None, Parameter(help="As torch names it, such as `cpu`.")] = None,
    engine: Annotated[
        str, Parameter(help="`local`: processes of this machine; `ray`: tasks of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str, Parameter(help="With --engine ray: HOST:PORT of the cluster, `auto`, or `local`.")
    ] = "auto",
    resources: Annotated[
        str | None, Parameter(help="With --engine ray: what a trial gets, as in cpu=2,gpu=0.5.")
    ] = None,
    run_dir: Annotated[
        str | None, Parameter(help="Folder of the search; NAME.search if not given.")
    ] = None,
    again: Annotated[
        bool, Parameter(help="Delete what the folder holds of a search, and search again.")
    ] = False,
    columns: str | None = None,
    range_test: Annotated[
        bool,
        Parameter(help="Only find a learning rate to begin with, by steps at rising rates."),
    ] = False,
    page: PageFile = None,
    json: JsonFlag = False,
) -> int:
    """Look for better hyperparameters of a recipe.

    What is searched stands in the recipe, as in `lr: Annotated[float, hotlap.LogUniform(1e-4,
    1e-1)] = 1e-3`, or in --space. Arguments after the recipe are fixed. Trial 0 is the recipe's own
    configuration. Each trial is trained in a process of its own, with checkpoints, under the tuned
    plan if there is one. With asha and hyperband most trials are stopped early, and one that turns
    out good continues from its checkpoint.

    The best configurations and the recipe's own are repeated with other seeds, and a difference
    within the noise of seeds is reported as `same`. The same command continues a search that was
    interrupted, and prints the result of one that has ended.

    Parameters
    ----------
    space
        What a parameter may be, as in 'lr=loguniform(1e-5,1e-2)'; also uniform, intrange,
        poweroftwo and choice(a,b). May be given several times.
    objective
        What is compared: loss, or max:NAME or min:NAME of a metric of the task; also seconds and
        memory. May be given several times: trials are then compared in all of them, and what is
        found are those of which none is better than another in everything.
    columns
        Columns of the table, as in trial,value,lr: trial, state, step, value, seconds, memory,
        parameters, seeds, and each parameter.
    """
    from hotlap.host.facts import Host
    from hotlap.report import jsonout
    from hotlap.report import searching as text
    from hotlap.report.terminal import page_console
    from hotlap.search.asking import Request, ask, describe
    from hotlap.search.executors import check_device, executor_of, threads_of
    from hotlap.search.folder import delete, folder_of
    from hotlap.search.result import SearchResult
    from hotlap.tuning.fitting import memory_given

    path = recipe_of(target)
    check_page(page)
    if range_test:
        return _range_test(target, plan, device, page, json)
    request = Request(
        recipe=path,
        args=target.args,
        method=method,
        trials=trials,
        max_steps=max_steps,
        grace=grace,
        reduction=reduction,
        schedule=schedule,
        workers=workers,
        seed=seed,
        seeds=seeds,
        objectives=objective,
        space=space,
        points=points,
        memory_bytes=memory_given(memory),
        plan=plan,
        device=device,
        threads=threads_of(engine, resources),
    )
    check_device(engine, device)
    host = Host.detect()
    asked = ask(request, host)
    shown = text.columns_given(columns, tuple(asked.spec.space))
    folder = folder_of(path, run_dir)
    for line in (*asked.notes, describe(asked.spec)):
        say(line)
    # Ray prints what happens to its machines on standard output.
    with redirect_stdout(sys.stderr):
        executor = executor_of(engine, workers, address, resources, say)
        if again:
            delete(folder)
        study = _study(folder, asked, host, plan)
        with study.opened(), _shown(study, shown) as told:
            state = study.run(executor, told)
    reserved = frozenset(options_of(app_of(train.COMMAND)))
    plan = _plan_file(study, asked.spec, plan)
    result = SearchResult(state, reserved, _options_of_trials(study.spec, plan))
    found = {**result.to_json(), "run_dir": str(folder)}
    document = signed("search", found, study.origin.made, target.typed, "search")
    if json:
        jsonout.write(document)
    else:
        text.page(result, shown, page_console(), folder)
    write_page(page, document)
    return 0 if result.best is not None else 1


def _study(folder: Path, asked: Any, host: Any, plan: str) -> Any:
    """Return the search of a folder, not opened yet; `asked` was made in this process."""
    from hotlap.search.origin import Origin
    from hotlap.search.study import Study

    origin = Origin.of(asked.spec.recipe, made_on(host))
    return Study(folder, asked.spec, asked.space, origin, plan_is_given=plan != "auto")


def _plan_file(study: Any, asked: Any, plan: str) -> str:
    """Return the `--plan` of the trials: a file of its own where a search keeps another plan."""
    from hotlap.plan import Plan
    from hotlap.plan.file import PlanFile

    if study.spec.plan == asked.plan:
        return plan
    path = study.folder / "plan.toml"
    PlanFile(Plan(study.spec.plan)).write(path)
    return str(path)


def _options_of_trials(spec: Any, plan: str) -> tuple[str, ...]:
    """Return what `hotlap train` must be given to train as the trials of a search."""
    from hotlap.techniques import EXACT_PLAN

    options = () if spec.plan == EXACT_PLAN.techniques else ("--plan", plan)
    return options if spec.device is None else (*options, "--device", spec.device)


def _range_test(target: Target, plan: str, device: str | None, page: str | None, json: bool) -> int:
    """Run a learning-rate range test, and print what it found."""
    if page is not None:
        raise UsageError(
            f"--page {page} cannot be used with --range-test, which has no page. Remove --page "
            "or --range-test."
        )
    _refuse_options_of_searches(target)
    from hotlap.attach.plan_choice import choose
    from hotlap.host.facts import Host
    from hotlap.lab.subject import RecipeRun
    from hotlap.report import jsonout
    from hotlap.report.terminal import page_console
    from hotlap.search.range_test import find_learning_rate, name_of_rate, space_text

    host = Host.detect()
    run = RecipeRun(path=recipe_of(target), args=target.args, device=device)
    chosen = choose(run, plan, cpu=host.cpu, torch=host.torch or "", by_hand=True)
    say(chosen.line)
    with task_and_values_of(target) as (task, values):
        found = find_learning_rate(task, chosen.plan, device=device)
    if json:
        jsonout.write(found.to_json())
    elif found.rate is None:
        page_console().print(f"No learning rate was found: {found.reason}.")
    else:
        page_console().print(
            f"A learning rate to begin with: {found.rate:g} ({found.reason}).\n"
            f"To search around it: {space_text(found.to_json(), name_of_rate(values))}"
        )
    return 0 if found.rate is not None else 1


def _refuse_options_of_searches(target: Target) -> None:
    """Refuse options that a range test would not use."""
    given, _ = split(target.typed, options_of(app_of(COMMAND)))
    names = dict.fromkeys(word.partition("=")[0] for word in given)
    unused = [name for name in names if name not in _OF_RANGE_TEST]
    if unused:
        raise UsageError(
            f"{', '.join(unused)} cannot be used with --range-test, which searches nothing. Remove "
            f"{'it' if len(unused) == 1 else 'them'}, or --range-test."
        )


@contextmanager
def _shown(study: Any, columns: tuple[str, ...]) -> Iterator[Any]:
    """Show a search while it runs: a table in a terminal, else lines."""
    from rich.live import Live

    from hotlap.report import searching as text
    from hotlap.report.terminal import progress_console

    for line in study.notes:
        say(line)
    remaining = text.Remaining(study.state)
    console = progress_console()
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                yield lambda state, _: live.update(
                    text.live_table(state, columns, remaining.seconds(state)), refresh=True
                )
        else:
            yield lambda state, job: say(text.outcome_line(state, job))
    except (KeyboardInterrupt, SystemExit):
        say(f"stopped; the same command continues the search in '{study.folder}'")
        raise


COMMAND = Command(
    name="search",
    function=search,
    takes_script=True,
    examples=(
        "hotlap search recipe.py --trials 24 --workers 2 --objective max:accuracy",
        "hotlap search recipe.py --space 'lr=loguniform(1e-5,1e-2)' --space 'width=choice(64,128)'",
        "hotlap search recipe.py --objective loss --objective seconds   # what speed costs",
        "hotlap search recipe.py --range-test   # a learning rate to begin with",
        "hotlap search recipe.py --method tpe --trials 30 --epochs 5   # --epochs is the recipe's",
    ),
)
