"""For people who use Ray Tune: a recipe as a trainable of their own `Tuner` or `tune.run`."""

import functools
import importlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.search.parameters import words_of

_RUN = "run"


def trainable(
    recipe: str | Path,
    *,
    arguments: Sequence[str] = (),
    plan: str | Path | None = None,
    device: str | None = None,
) -> Callable[[Mapping[str, Any]], None]:
    """Return what `ray.tune.Tuner(...)` and `tune.run` train, for a recipe.

    Values of Ray's `config` are parameters of the recipe's `task`. After each epoch the metrics are
    reported (`loss` is that of the held-out samples, `train_loss` the training loss), with a
    checkpoint that holds that epoch. A trial that Ray starts again continues from its checkpoint.

    Args:
        recipe: its file, which every machine must have at the same path.
        arguments: the recipe's own, for all trials.
        plan: a plan file; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU.

    Raises:
        MissingFile: there is no such recipe or plan.
        UsageError: the plan file is wrong, or the arguments are one string.

    >>> tune.Tuner(hotlap.ray.trainable("recipe.py"),        # doctest: +SKIP
    ...            param_space={"lr": tune.loguniform(1e-4, 1e-1)})
    """
    path = Path(recipe)
    if not path.is_file():
        raise MissingFile(
            f"recipe '{path}' was not found. Expected: a Python file with `def task(...)`."
        )
    if isinstance(arguments, str):
        raise UsageError(
            f"arguments={arguments!r} is a string. Expected: one string for each word, such as "
            "arguments=['--epochs', '3']."
        )
    techniques = None if plan is None else PlanFile.read(Path(plan)).plan.techniques
    # By name, so that Ray can send it to other processes.
    return functools.partial(
        _train,
        recipe=str(path.resolve()),
        arguments=tuple(arguments),
        techniques=techniques,
        device=device,
    )


def _train(
    config: Mapping[str, Any],
    *,
    recipe: str,
    arguments: tuple[str, ...],
    techniques: Mapping[str, Any] | None,
    device: str | None,
) -> None:
    """Train a trial in a process of Ray's."""
    import torch

    from hotlap.engine.train import train
    from hotlap.recipe import as_command_line, load

    tune = importlib.import_module("ray.tune")
    cpus = os.environ.get("OMP_NUM_THREADS")
    if cpus is not None and cpus.isdecimal():
        # Ray sets it to the trial's share of the machine.
        torch.set_num_threads(int(cpus))
    folder = tune.get_context().get_trial_dir()
    if folder is None:
        raise UsageError(
            "what hotlap.ray.trainable(...) returned was called outside of a Ray Tune trial. Pass "
            "it to ray.tune.Tuner, which calls it."
        )
    run = Path(folder) / _RUN
    given = tune.get_checkpoint()
    if given is not None and not run.exists():
        with given.as_directory() as kept:
            _copy(Path(kept), run)

    def saved(epoch: Any, _: Path) -> None:
        measured = {"train_loss": epoch.loss, **(epoch.held_out or {"loss": epoch.loss})}
        rest = {k: v for k, v in asdict(epoch).items() if k not in ("loss", "held_out")}
        tune.report({**rest, **measured}, checkpoint=tune.Checkpoint.from_directory(str(run)))

    words = [*arguments, *words_of(config)]
    with as_command_line(recipe, words):
        train(
            load(recipe).task(words),
            None if techniques is None else Plan(techniques),
            device=device,
            run_dir=run,
            resume="auto",
            keep=1,
            saved=saved,
        )


def _copy(kept: Path, run: Path) -> None:
    """Copy the folder of a run: all of it is there, or none, if this process ends meanwhile."""
    partial = run.with_name(f"{run.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    shutil.copytree(kept, partial, ignore=shutil.ignore_patterns("LOCK"))
    os.replace(partial, run)
