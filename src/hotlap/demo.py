"""`hotlap demo`: diagnoses and tunes an example script, and runs it with and without plans."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from typing import Any

from rich.console import Console

from hotlap.attach.entry import Script
from hotlap.attach.plan_choice import measured_on
from hotlap.diagnosis.causes import diagnose
from hotlap.diagnosis.findings import Diagnosis
from hotlap.errors import MissingFile, RunError
from hotlap.host.facts import Host
from hotlap.host.probes import OtherLoad
from hotlap.lab.command_turns import CommandRun, run_in_turns
from hotlap.lab.trial import Lab
from hotlap.lab.whole_run import WholeRun
from hotlap.plan import Plan
from hotlap.report import diagnosis as diagnosis_page
from hotlap.report import tuning as tuning_page
from hotlap.tuning.hints import Hint
from hotlap.tuning.result import Tuning, plan_file
from hotlap.tuning.stages import tune

_PLANNED_EPOCHS = 10
_SHOWN_EPOCHS = 3
_LEAST_EPOCHS = 2
"""The first one may read what later ones have in memory."""
_RUNS = 2.6
"""What the three runs of part 3 take together, the plain one being 1."""
_MOST_LINES = 5
"""Epochs that are all shown."""
_DIGITS_FACTOR = 40
"""The digits that stand in for FashionMNIST are forty times fewer: so many more epochs of them."""
_FAR = 0.15
"""Share by which two parts may differ in what a plain step takes, without a word about it."""
_MISSED = 0.1
"""The same of what was predicted, and of what came out."""
_NO_FASTER = 0.98
"""Of the seconds of a run with exact techniques alone, from which on the tuned one is no faster."""
_LOOK_S = 2.0
_POLICY = "OMP_WAIT_POLICY"
_DIAGNOSE_S = 45.0
_TUNE_S = 95.0
_WHOLE_S = 225.0
"""That the whole story may take, and fifteen more for what is not counted: four minutes."""
_OPTIONS = "Options that are named above belong to these commands."
_NEXT = """\
# Why is it slow? --epochs is the script's own argument.
hotlap diagnose train.py --epochs 10

# Find a faster plan, and prove it.
hotlap tune train.py --epochs 10

# Run the unedited script under that plan.
hotlap run --plan auto train.py --epochs 10"""
_PASSIVE = (
    f" Part 2 was measured without {_POLICY}=passive, with which a plan may gain less than it does "
    "in your own runs."
)
_BUSY_CORES = 0.2
"""More than that, kept busy by other processes, is said beside a time."""
_TAKEN_CORES = 0.75
"""From which on a thread that spins rarely has its core. With less, part 3 is run as part 2 was."""
_LOSS = re.compile(r"loss (\d+\.\d+)")
_TIMES = re.compile(r", \d+\.\d s$", re.MULTILINE)


def example() -> Path:
    """Return the folder of the example: the package's own copy, or the checkout's.

    Raises:
        MissingFile: neither is there.
    """
    package = Path(__file__).parent
    for folder in (package.parents[1] / "examples", package / "_examples"):
        if (folder / "fashion_mnist" / "plain.py").is_file():
            return folder / "fashion_mnist"
    raise MissingFile(
        "the demo's example script, fashion_mnist/plain.py, was not found in "
        f"'{package / '_examples'}', so the installation of hotlap is incomplete. Install hotlap "
        "again."
    )


def demo(console: Console, host: Host, say: Callable[[str], None]) -> dict[str, Any]:
    """Tell the story, and return it as data: what `page_of_story` shows.

    Args:
        console: where the pages go.
        host: what it runs on.
        say: called with a line of progress now and then.

    Raises:
        RunError: a part of it could not be done here.
    """
    begin, folder = time.monotonic(), example()
    factor = _find_data(folder, console)
    planned = Script(
        path="plain.py", args=("--epochs", str(_PLANNED_EPOCHS * factor)), cwd=str(folder)
    )
    console.print(
        f"\n{host.cpu}, {host.cores} cores, torch {host.torch}. "
        "The script is written as in an introductory tutorial, and is not edited."
    )
    console.rule("1. Why is it slow?")
    with Lab(planned) as lab:
        diagnosis = diagnose(lab, host, budget_s=_DIAGNOSE_S, progress=say)
    diagnosis_page.page(diagnosis, console)
    console.rule("2. Make it faster, by measuring, and prove that it learns the same")
    with Lab(planned) as lab:
        found = tune(lab, host, budget_s=_TUNE_S, hints=hints_of(diagnosis), progress=say)
    tuning_page.page(found, console, is_typed=False)
    speeds = _of_speeds(diagnosis.trace.step_ms()["median"], found.shown_ms[0])
    if speeds and found.gained:
        console.print(speeds)
    console.rule("3. Run it")
    left_s = _WHOLE_S - (time.monotonic() - begin)
    epochs = _epochs_to_show(left_s, found.whole_run["baseline"]) * factor
    shown = Script(path="plain.py", args=("--epochs", str(epochs)), cwd=str(folder))
    with _wait_passively_if_busy(console) as is_passive:
        runs = _show_runs(shown, found, host, console, say)
    if words := _against_the_prediction(found, planned, runs):
        console.print(words + is_passive * _PASSIVE)
    _check_learning(shown, runs)
    console.rule("4. Your own script")
    console.print(f"{_OPTIONS}\n\n{_NEXT}")
    return {
        "diagnosis": diagnosis.to_json(),
        "tuning": found.to_json(),
        "runs": [
            {
                "name": name,
                "seconds": run.seconds,
                "last_line": _learned(run).strip().splitlines()[-1:],
            }
            for name, run in runs
        ],
    }


def hints_of(diagnosis: Diagnosis) -> list[Hint]:
    """Return what a diagnosis measured to be faster, the fastest first."""
    # Of a step without evaluation: what findings cost is a share of it.
    step = diagnosis.trace.step_ms()["median"]
    apart = 1 + (diagnosis.floor or 0.0)
    hints = [
        Hint(plan, step / (step - ms), step / (step - low) / apart, step / (step - high) * apart)
        for plan, ms, low, high in (
            *((Plan(one.plan), one.cost_ms, one.low, one.high) for one in diagnosis.findings),
            *(
                (Plan({one.technique: one.options}), one.saves_ms, one.low, one.high)
                for one in diagnosis.opportunities
            ),
        )
        if plan
    ]
    return sorted(hints, key=lambda hint: -hint.measured)


def _of_speeds(first: float, then: float) -> str:
    """Return in words that a plain step was faster in one part than in the other, if it was.

    Args:
        first: ms of a plain step while it was diagnosed.
        then: the same while it was tuned.
    """
    if abs(log(first / then)) <= _FAR:
        return ""
    return (
        f"\nA median plain step took {first:.2f} ms in part 1 and {then:.2f} ms in part 2: "
        "machines are not always equally fast, nor are steps. A speed-up depends on that far less: "
        "the plain script and the plan took turns within the same seconds."
    )


def _epochs_to_show(left_s: float, plain: WholeRun) -> int:
    """Return of how many epochs the three runs are for which so many seconds are left.

    Args:
        left_s: seconds.
        plain: the run of `_PLANNED_EPOCHS`, as it is predicted.
    """
    if plain.seconds is None:
        return _SHOWN_EPOCHS
    epoch_s = (plain.seconds - plain.start_s) / _PLANNED_EPOCHS
    epochs = (left_s / _RUNS - plain.start_s) / epoch_s
    return max(_LEAST_EPOCHS, min(_SHOWN_EPOCHS, int(epochs)))


def _find_data(folder: Path, console: Console) -> int:
    """Print which dataset is used; return how many times more epochs of it are needed."""
    done = subprocess.run(
        [sys.executable, str(folder / "data.py"), "--fetch"], capture_output=True, text=True
    )
    if done.returncode == 0:
        console.print(f"FashionMNIST: {done.stdout.strip()}")
        return 1
    console.print((done.stderr + done.stdout).strip())
    return _DIGITS_FACTOR


@contextlib.contextmanager
def _wait_passively_if_busy(console: Console) -> Iterator[bool]:
    """Let threads of what is run wait without spinning, where others need the cores; give True.

    Two threads that wait for each other on two cores, one of which is taken, may be slower by far.
    """
    load = OtherLoad()
    time.sleep(_LOOK_S)
    busy = load.so_far()[0]
    if busy <= _TAKEN_CORES or _POLICY in os.environ:
        yield False
        return
    console.print(
        f"Just before these runs other processes kept {busy:.1f} cores busy: threads of the runs "
        f"wait without spinning ({_POLICY}=passive)."
    )
    os.environ[_POLICY] = "passive"
    try:
        yield True
    finally:
        del os.environ[_POLICY]


def _commands(script: Script, found: Tuning, plan: Path) -> dict[str, list[str]]:
    """Return what is run, by its name.

    Args:
        script: the example.
        found: what its tuning found.
        plan: the file of the tuned plan.
    """
    run = [sys.executable, "-m", "hotlap", "run"]
    own = [str(script.path), *script.args]
    commands = {
        "plain": script.command(),
        "hotlap run, exact techniques only": [*run, *own],
    }
    if found.gained:
        tuned = f"hotlap run --plan auto ({found.verdict.tier})"
        commands[tuned] = [*run, "--plan", str(plan), *own]
    return commands


def _show_runs(
    script: Script, found: Tuning, host: Host, console: Console, say: Callable[[str], None]
) -> list[tuple[str, CommandRun]]:
    """Run the script plain and under plans, in turns; print, and return, what came out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuned.toml")
        plan_file(found, measured_on(host)).write(path)
        commands = _commands(script, found, path)
        say(f"{len(commands)} runs of the script, in turns: {', '.join(commands)}")
        load = OtherLoad()
        done = run_in_turns(list(commands.values()), script.folder)
        others = load.so_far()[0]
    runs = list(zip(commands, done, strict=True))
    for name, run in runs:
        if run.exit_code != 0:
            raise RunError(
                f"`{' '.join(commands[name])}` ended with exit code {run.exit_code}. Run it in "
                f"'{script.folder}' to see why."
            )
    beside = ""
    if others > _BUSY_CORES:
        beside = f" Meanwhile other processes kept {others:.1f} cores busy."
    console.print(
        f"Runs of {script.args[-1]} epochs, in turns of a second: while one runs, the others stand "
        f"still. The seconds of a run are those of its own turns, start-up included.{beside}"
    )
    if "resident" in found.plan.techniques:
        console.print(
            "A plan with `resident` still reads the samples in its first epoch, and keeps them: it "
            "gains in the later ones."
        )
    (_, plain), *under_plans = runs
    console.print(_epochs_of("plain", plain))
    for name, run in under_plans:
        gain = f"  {plain.seconds / run.seconds:.2f}x; {_of_losses(plain, run)}"
        console.print(f"{_epochs_of(name, run)}\n{gain}")
    if not found.gained:
        console.print(
            "There is no tuned plan to run: see the reason in part 2. The exact techniques are "
            "those that `hotlap run` uses without a tuning."
        )
    return runs


def _check_learning(script: Script, runs: Sequence[tuple[str, CommandRun]]) -> None:
    (_, plain), (_, exact), *_ = runs
    if _learned(plain) != _learned(exact):
        raise RunError(
            f"an exact plan changed what `{script}` prints, although it must not. This is a bug in "
            "hotlap. Report it to the developers, with the lines above."
        )


def _against_the_prediction(
    found: Tuning, planned: Script, runs: Sequence[tuple[str, CommandRun]]
) -> str:
    """Return in words what the runs say of the prediction, and of the plan."""
    (_, plain), (_, exact), (_, tuned) = runs if len(runs) == 3 else (*runs, runs[-1])
    before, after = (found.whole_run[name].seconds for name in ("baseline", "best"))
    if not found.gained or before is None or after is None:
        return ""
    epochs = int(planned.args[-1])
    pace, pace_tuned = _at_pace(plain, epochs), _at_pace(tuned, epochs)
    words = (
        f"At the pace of these runs {epochs} epochs take {pace:.0f} s -> {pace_tuned:.0f} s "
        f"({pace / pace_tuned:.2f}x); part 2 predicts {before:.0f} s -> {after:.0f} s "
        f"({before / after:.2f}x)"
    )
    if abs(log(pace / before)) > _MISSED:
        words += f". The machine was {'faster' if pace < before else 'slower'} in these runs"
    if abs(log(pace / pace_tuned / (before / after))) > _MISSED:
        words += ". Of the two ratios the lower one is safer to rely on"
    if found.verdict.tier != "exact" and tuned.seconds > _NO_FASTER * exact.seconds:
        words += ". The tuned plan was no faster here than exact techniques alone"
        exact_ones = [rung for rung in found.proven_plans if rung.tier == "exact"]
        if exact_ones and exact_ones[0].speedup.high < found.speedup.low:
            words += ", although it was in the races of part 2"
    return f"{words}."


def _at_pace(run: CommandRun, epochs: int) -> float:
    """Return the seconds of a run of so many epochs, at the pace of this one's later ones."""
    ends = [seconds for seconds, line in run.lines if line.startswith("epoch")]
    each = (ends[-1] - ends[0]) / (len(ends) - 1)
    return run.seconds + each * (epochs - len(ends))


def _learned(run: CommandRun) -> str:
    """Return what the example printed, without the times."""
    return _TIMES.sub("", run.output)


def _epochs_of(name: str, run: CommandRun) -> str:
    # Its own clock also counts while it stands still.
    lines = [
        f"{_TIMES.sub('', line)}, after {seconds:.1f} s"
        for seconds, line in run.lines
        if line.startswith("epoch")
    ]
    return f"{name}: {run.seconds:.1f} s\n  " + "\n  ".join(
        lines if len(lines) <= _MOST_LINES else lines[-2:]
    )


def _of_losses(plain: CommandRun, run: CommandRun) -> str:
    """Return in words how far apart the last losses are: rounding is no other learning."""
    if _learned(plain) == _learned(run):
        return "byte for byte the plain script's output, except for times"
    theirs, ours = _last_loss(plain), _last_loss(run)
    if not theirs or ours is None:
        return "other output than the plain script's"
    if ours == theirs:
        return "the last loss is the same"
    return (
        f"the last loss is {abs(ours / theirs - 1):.1%} off. Runs that round differently drift "
        "apart, as runs with other seeds do; accuracies vary more than losses."
    )


def _last_loss(run: CommandRun) -> float | None:
    """Return the last loss that was printed, None if there was none."""
    found = _LOSS.findall(run.output)
    return float(found[-1]) if found else None
