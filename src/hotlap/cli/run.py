"""`hotlap run`: runs an unedited script under a plan."""

import sys
from pathlib import Path
from typing import Any

from hotlap.attach.default_plan import PlanChoice
from hotlap.attach.entry import Script
from hotlap.cli.command import Command
from hotlap.cli.starting import may_be_recipe, say, script_of
from hotlap.cli.target import Target
from hotlap.errors import UsageError


def run(
    *,
    target: Target,
    plan: str | None = None,
    run_dir: str | None = None,
    track: tuple[str, ...] = (),
    every: str = "2s",
    technique: tuple[str, ...] = (),
    python: str = sys.executable,
    synchronous: bool = False,
    dry: bool = False,
) -> int:
    """Run an unedited script under a plan.

    Without --plan only bit-exact techniques are used, and the script's own number of threads.
    HOTLAP_OFF=1 switches everything off.

    Parameters
    ----------
    plan
        A plan file, or `auto` for the tuned one.
    run_dir
        Folder for the run's records: the losses of its steps, taken where backward starts, and
        system metrics.
    track
        A tracker that gets the records too: tensorboard, wandb, mlflow, trackio, or module:NAME;
        may be given several times. Needs --run-dir.
    every
        Time between two samples of system metrics.
    technique
        A third-party technique that the plan names, as module:NAME; may be given several times.
    python
        Python that runs the script.
    synchronous
        Launch each GPU kernel and wait for it (CUDA_LAUNCH_BLOCKING=1): slow, but the traceback of
        a device-side assert then ends at the right line.
    dry
        Say what would be done, and do nothing.
    """
    from hotlap.attach.default_plan import choose_default
    from hotlap.attach.runner import run as run_script
    from hotlap.report.printable import printable

    script = script_of(target, python)
    _refuse_recipe(script, target)
    recorded = _recorded(run_dir, track, every)
    chosen = choose_default(script, plan) or _choose(script, plan, technique)
    say(chosen.line)
    variables = {"CUDA_LAUNCH_BLOCKING": "1"} if synchronous else {}
    if dry:
        said = [*(f"{name}={value}" for name, value in variables.items()), *script.command()]
        say("would run: " + " ".join(said))
        return 0
    outcome = run_script(
        script, chosen.plan, techniques=technique, variables=variables, recorded=recorded
    )
    # What a rank says of its techniques comes with that of the others.
    for row in outcome.techniques if outcome.own_rank is None else ():
        if row["state"] != "applied":
            say(f"{row['name']}: {row['state']}, {printable(row['why'])}")
    if outcome.children:
        from hotlap.attach import rank_report

        for line in rank_report.lines(outcome.children, outcome.exit_code):
            say(line)
    fewer = outcome.started_fewer(script)
    for line in [*outcome.problems(script), *([] if fewer is None else [fewer])]:
        say(line)
    return outcome.exit_code


def _recorded(run_dir: str | None, track: tuple[str, ...], every: str) -> Any:
    """Return where the run is recorded, None if it is not."""
    if run_dir is None and not track:
        return None
    from hotlap.attach.entry import is_off
    from hotlap.attach.recorded import RecordedScript
    from hotlap.cli.tracking import TrackRequest

    request = TrackRequest(track, every, run_dir)
    if is_off():
        say("HOTLAP_OFF is set: the script runs plain, and nothing is recorded")
        return None
    return RecordedScript(Path(str(run_dir)), track, request.every_s, say)


def _refuse_recipe(script: Script, target: Target) -> None:
    if script.path is None or not may_be_recipe(script.path):
        return
    from hotlap.recipe_detection import is_recipe, trains_itself

    if is_recipe(script.path) and not trains_itself(script.path):
        raise UsageError(
            f"'{script.path}' is a recipe: it defines `task()` and does not train when it is run. "
            f"Use `hotlap train {target}`."
        )


def _choose(script: Script, wanted: str | None, techniques: tuple[str, ...]) -> PlanChoice:
    """Return the plan to run under, of a plan file."""
    from hotlap.attach.plan_choice import choose
    from hotlap.host import probes

    # `Host.detect` takes a tenth of a second.
    cpu, torch = probes.cpu_name(), probes.torch_version_of(script.python) or ""
    return choose(script, wanted, cpu=cpu, torch=torch, techniques=techniques)


COMMAND = Command(
    name="run",
    function=run,
    takes_script=True,
    examples=(
        "hotlap run train.py --epochs 10",
        "hotlap run --plan auto train.py --epochs 10",
        "hotlap run --plan fast.toml -m package.train",
        "hotlap run --run-dir runs/1 --track tensorboard train.py   # record losses",
        "hotlap run torchrun --nproc_per_node 2 train.py",
        "hotlap run accelerate launch train.py",
        "hotlap run --synchronous train.py   # find the line of a device-side assert",
    ),
    exit_codes="the script's; 2 if the input is wrong: nothing was started.",
)
