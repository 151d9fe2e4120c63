"""`hotlap train`: trains a recipe with hotlap's engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.micro_batch import MicroBatchRequest
from hotlap.cli.options import JsonFlag
from hotlap.cli.page import PageFile, check_page, signed, write_page
from hotlap.cli.ranks import RankRequest, is_first_rank, is_one_of_several
from hotlap.cli.script import StartFolder, recipe_of, task_and_values_of
from hotlap.cli.starting import say
from hotlap.cli.target import Target
from hotlap.cli.tracking import TrackRequest, about_recipe
from hotlap.errors import DoesNotFit, HotlapError, UsageError


def train(
    *,
    target: Target,
    plan: Annotated[str | None, Parameter(help="A plan file, or `auto` for the tuned one.")] = None,
    device: Annotated[str | None, Parameter(help="As torch names it, such as `cpu`.")] = None,
    devices: Annotated[
        int | None,
        Parameter(help="Number of devices of this machine that train the model together."),
    ] = None,
    restarts: Annotated[
        int,
        Parameter(
            help="How often the run is restarted from its last checkpoint after a rank has died."
        ),
    ] = 0,
    rank_timeout: Annotated[
        str, Parameter(help="How long a rank waits for another one before it gives up.")
    ] = "5m",
    rank_overlap: Annotated[
        bool, Parameter(help="Sum gradients of ranks while the backward pass still runs.")
    ] = False,
    run_dir: Annotated[
        str | None,
        Parameter(
            help="Folder of the run's checkpoints and records; without it, that of --resume, or "
            "none."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        Parameter(help="A run's folder, a `step-...` folder, or `auto`: what --run-dir holds."),
    ] = None,
    weights: Annotated[
        str | None,
        Parameter(
            help="Initial weights: a run's folder, or a file of weights. With --resume auto, used "
            "where nothing was saved yet."
        ),
    ] = None,
    continue_from: Annotated[
        str | None,
        Parameter(
            name="--continue",
            help="Continue a run that a plain script saved with torch.save: weights, optimizer, "
            "scheduler and epoch. With --resume auto, used where nothing was saved yet.",
        ),
    ] = None,
    keys: Annotated[
        str | None,
        Parameter(
            help="With --continue: keys in the file, as in model=net,optimizer=opt,scheduler=none."
        ),
    ] = None,
    epochs_done: Annotated[
        int | None,
        Parameter(help="With --continue: number of epochs done, if the file is not clear."),
    ] = None,
    save_every: str | None = None,
    keep: Annotated[int, Parameter(help="Number of checkpoints to keep, the newest ones.")] = 2,
    estimate: Annotated[
        bool, Parameter(help="Estimate the peak memory, and train nothing.")
    ] = False,
    memory: Annotated[
        str | None,
        Parameter(
            help="With --estimate or --micro-batch auto: the memory to fit into, as in 80GiB."
        ),
    ] = None,
    micro_batch: Annotated[
        str | None,
        Parameter(
            help="Samples that go through the model at once: a number, or `auto` for the fastest "
            "one that fits into memory, found by trials and kept for later runs."
        ),
    ] = None,
    again: Annotated[
        bool, Parameter(help="With --micro-batch auto: make the trials again.")
    ] = False,
    track: Annotated[
        tuple[str, ...],
        Parameter(
            help="A tracker that gets the run's records too: tensorboard, wandb, mlflow, trackio, "
            "or module:NAME; may be given several times. Needs --run-dir."
        ),
    ] = (),
    every: Annotated[
        str, Parameter(help="Time between samples of system metrics, which --run-dir records.")
    ] = "2s",
    technique: tuple[str, ...] = (),
    page: PageFile = None,
    json: JsonFlag = False,
) -> int:
    """Train a recipe with hotlap's engine.

    A recipe is a Python file with a function `task(...)` that returns a `hotlap.Task`. Arguments
    after it are the function's parameters, as in `--lr 3e-4`. Without --plan only bit-exact
    techniques are used; with a plan that was edited, or tuned with another CPU, kind of GPU, number
    of cores or torch version, only its bit-exact ones. A plan file that was written by hand is used
    as it is.

    Ctrl-C, SIGTERM and SIGHUP save a checkpoint after the current step and end the run; a second
    one ends it at once.

    With --devices N, and in processes that torchrun or Slurm starts, several ranks train one model:
    the steps, their samples and the checkpoints are those of one device. A rank that does not
    answer within --rank-timeout, as it hangs or was stopped, ends the run; saving a checkpoint,
    for which ranks wait, must take less. With --restarts N (and --run-dir) all ranks are started
    again from the last checkpoint after one has died, at most N times.

    Parameters
    ----------
    save_every
        How often a checkpoint is saved: 500steps, 2epochs, 10m. Default: every epoch.
    technique
        A third-party technique that the plan names, as module:NAME; may be given several times.
    """
    from hotlap.cli.stopping import Stopping
    from hotlap.device.accelerator import kind_of
    from hotlap.engine.memory.advice import Run, room_for
    from hotlap.engine.train import train as train_task
    from hotlap.host.facts import Host
    from hotlap.lab.subject import RecipeRun
    from hotlap.report import training as text

    path, start = recipe_of(target), StartFolder()
    _check_page(page, estimate)
    tracking = TrackRequest(track, every, run_dir or resume)
    request = MicroBatchRequest(micro_batch, memory, again, estimate)
    ranks = RankRequest(devices, device, run_dir, resume, restarts, rank_timeout)
    code = None if estimate else ranks.launch(target.typed)
    if code is not None:
        return code
    if device is not None:
        # Whether it is there is asked once the recipe is imported: that may choose what CUDA shows.
        kind_of(device)
    host = Host.detect()
    recipe = RecipeRun(path=path, args=target.args, cwd=start.folder, device=device)
    chosen = _choose(recipe, plan, host, technique)
    with task_and_values_of(target) as (task, values):
        split = request.choose(recipe, task, chosen.plan, host, technique)
        if estimate:
            return _estimate(task, split.plan, device, memory, technique, json, devices or 1)
        _say_what_begins(chosen.line, task, is_saved=run_dir is not None or resume is not None)
        run = Run(task, split.plan, device, room_for(device), technique)
        # Entered last, left first: only while it trains do signals ask it to stop.
        with _advising(run), Stopping() as stopping:
            done = train_task(
                task,
                split.plan,
                device=device,
                run_dir=start.path(run_dir),
                resume=_resumed(ranks.resumes_from, start),
                weights=start.path(weights),
                continue_from=start.path(continue_from),
                keys=keys,
                epochs_done=epochs_done,
                save_every=save_every,
                keep=keep,
                techniques=technique,
                rank_timeout_s=ranks.timeout_s,
                rank_overlap=rank_overlap,
                track=track,
                system_every_s=tracking.every_s,
                about=about_recipe(str(start.path(path)), values),
                progress=lambda epoch: say(text.line(epoch, task)),
                notice=say,
                stop=lambda: stopping.is_asked,
            )
    split.remember(done)
    if is_first_rank():
        found = {"script": str(target), **done.to_json(), **split.to_json()}
        _tell(done, signed("training", found, host, target.typed, "train"), start.path(page), json)
    if not done.is_stopped:
        return 0
    say(text.stop_line(done, stopping.name))
    return stopping.exit_code


def _resumed(resume: str | None, start: StartFolder) -> str | None:
    return resume if resume == "auto" else start.path(resume)


def _choose(recipe: Any, plan: str | None, host: Any, techniques: tuple[str, ...]) -> Any:
    """Return the plan to train under: a plan file's, the tuned one, or exact techniques."""
    from hotlap.attach.plan_choice import choose

    return choose(
        recipe,
        plan,
        cpu=host.cpu,
        torch=host.torch or "",
        by_hand=True,
        techniques=techniques,
    )


def _check_page(page: str | None, estimate: bool) -> None:
    if page is not None and estimate:
        raise UsageError(
            f"--page {page} cannot be used with --estimate, which trains nothing. Remove --page "
            "or --estimate."
        )
    if is_first_rank():
        check_page(page)


def _tell(done: Any, found: dict[str, Any], page: str | None, json: bool) -> None:
    from hotlap.report import jsonout
    from hotlap.report import training as text
    from hotlap.report.terminal import page_console

    if json:
        jsonout.write(found)
    else:
        text.page(done, page_console())
    write_page(page, found)


def _say_what_begins(plan_line: str, task: Any, *, is_saved: bool) -> None:
    from hotlap.report import training as text

    if not is_first_rank():
        return
    say(plan_line)
    say(text.opening_line(task))
    if not is_saved:
        say("this run will not be saved. Pass --run-dir FOLDER to save checkpoints")


@contextmanager
def _advising(run: Any) -> Iterator[None]:
    """Note on an error what would have fitted, if memory ran out.

    Not on one rank of several: the others have lost it, and wait only a moment for what it says.
    """
    if is_one_of_several():
        yield
        return
    try:
        yield
    except (RuntimeError, HotlapError) as error:
        try:
            advice = run.advise(error)
        except Exception as failed:
            advice = f"what would have fitted could not be estimated: {failed}"
        if advice is not None:
            error.add_note(f"hotlap train: {advice}.")
            if isinstance(error, DoesNotFit):
                # One advice, which knows the figures.
                error.remedy = ""
        raise


def _estimate(
    task: Any,
    plan: Any,
    device: str | None,
    memory: str | None,
    techniques: tuple[str, ...],
    json: bool,
    ranks: int,
) -> int:
    from hotlap.engine.memory.estimate import estimate, memory_size
    from hotlap.report import estimating, jsonout
    from hotlap.report.terminal import page_console

    room = None if memory is None else memory_size(memory)
    found = estimate(
        task, plan, device=device, memory_bytes=room, techniques=techniques, ranks=ranks
    )
    if json:
        jsonout.write(found.to_json())
    else:
        estimating.page(found, page_console())
    return 0


COMMAND = Command(
    name="train",
    function=train,
    takes_script=True,
    examples=(
        "hotlap train recipe.py --run-dir runs/1 --lr 3e-4   # --lr is the recipe's",
        "hotlap train recipe.py --run-dir runs/2 --plan auto   # as `tune` found",
        "hotlap train recipe.py --page run.html   # the result as a page to look at",
        "hotlap train recipe.py --run-dir runs/3 --save-every 10m --resume auto",
        "hotlap train recipe.py --run-dir runs/4 --weights old.pth   # none of its code is run",
        "hotlap train recipe.py --run-dir runs/5 --devices 2   # one model on two devices",
        "hotlap train recipe.py --run-dir runs/5 --devices 2 --restarts 3 --resume auto",
        "hotlap train recipe.py --run-dir runs/6 --continue old.pth   # its optimizer, too",
        "hotlap train recipe.py --run-dir runs/7 --track tensorboard   # its records, too",
        "hotlap train recipe.py --estimate --device cuda --memory 80GiB",
        "hotlap train recipe.py --micro-batch auto --memory 2GiB",
    ),
)
