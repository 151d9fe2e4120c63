"""`hotlap tune`: its options, and whether the plan file is written, replaced or left."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.cli.command import EXIT_CODES, Command
from hotlap.cli.keeping import RunDir, check_run_dir, keep
from hotlap.cli.options import Duration, JsonFlag
from hotlap.cli.page import PageFile, check_page, signed, write_page
from hotlap.cli.script import detect_host, script_or_recipe
from hotlap.cli.starting import say
from hotlap.cli.target import Target, split
from hotlap.cli.trials import lab_of
from hotlap.errors import HotlapError
from hotlap.lab.subject import Subject

NOTHING_TO_GAIN = 3
NOT_PROVEN = 4
_NO_PLAN = {"plan_file": None, "use": None}


def tune(
    *,
    target: Target,
    budget: Duration = 180.0,
    accept: str = "rounding",
    aim: Annotated[str, Parameter(name="--for")] = "run",
    steps: int | None = None,
    memory: Annotated[
        str | None, Parameter(help="The memory that a plan may hold at once, as in 2GiB.")
    ] = None,
    again: bool = False,
    only: tuple[str, ...] = (),
    technique: tuple[str, ...] = (),
    out: Annotated[str | None, Parameter(help="Where the plan is written.")] = None,
    hide: tuple[str, ...] = (),
    python: Annotated[str, Parameter(help="Python that runs the script.")] = sys.executable,
    exit_code: bool = False,
    every: Annotated[
        bool, Parameter(name="--all", help="List the techniques that are not applicable, too.")
    ] = False,
    run_dir: RunDir = None,
    page: PageFile = None,
    json: JsonFlag = False,
) -> int:
    """Find the fastest plan by measured trials, prove it, and write the plan file.

    The script runs unedited, on a copy-on-write view of your files, many times. The plan is written
    beside the script as NAME.plan.toml, where `hotlap run --plan auto` finds it; if nothing is
    gained, no file is written (but for the micro-batch that a recipe needs to fit into --memory).
    A recipe, a file that imports hotlap and has a function `task`, is trained by hotlap's engine
    instead; `hotlap train --plan auto` finds its plan.

    Parameters
    ----------
    budget
        Total time, trials included; a proof that has begun may end a tenth later. The script is
        always started and observed for a moment, whatever the budget is.
    accept
        The weakest verdict that is good enough: exact, rounding or statistical.
    aim
        What the plan is chosen by: `run`, the predicted time of the whole run, or `steady`, that of
        a step once everything has started.
    steps
        Trials watch, and proofs follow, at most this many steps: for scripts whose steps take
        seconds. 64 or more; the script is not edited.
    again
        Measure everything again. Without it, what an earlier tuning of the same script, with the
        same options on this machine, measured is used: its result, or, if it was interrupted or
        undecided, its measurements.
    only
        Use no other technique than this one; may be given several times.
    technique
        A third-party technique, as module:NAME; may be given several times.
    hide
        Pattern of files that trials must not see, such as the script's own checkpoint.
    exit_code
        End with 3 if there is nothing to gain, and with 4 if a gain could not be proven or ruled
        out.
    """
    from hotlap.attach.plan_choice import measured_on, plan_path
    from hotlap.tuning.fitting import fit_plain, memory_given, on_base
    from hotlap.tuning.kept_tunings import kept_tuning
    from hotlap.tuning.result import plan_file
    from hotlap.tuning.stages import check_request
    from hotlap.tuning.stages import tune as search

    script = script_or_recipe(target, python)
    path = Path(out) if out is not None else plan_path(script)
    check_request(accept, only, technique, path, aim, steps)
    check_page(page)
    check_run_dir(run_dir, script)
    host = detect_host()
    room = memory_given(memory)
    fitted = fit_plain(
        script, host, room, accept=accept, again=again, techniques=technique, progress=say
    )
    script = fitted.subject
    asked = {"accept": accept, "only": only, "for": aim, "steps": steps, "hide": hide}
    asked |= {"memory": room, "techniques": technique}
    kept = kept_tuning(script, host, asked, again=again)
    before = kept.result_for(budget)
    found = before
    if found is None:
        with lab_of(script, hide=hide, techniques=technique) as lab:
            found = search(
                lab,
                host,
                budget_s=budget,
                accept=accept,
                only=only or None,
                aim=aim,
                steps=steps,
                kept=kept,
                memory=room,
                progress=say,
            )
    else:
        say(f"measured on {kept.when}, and unchanged since; to measure again: --again")
    found = on_base(found, fitted)
    held = _other_plan_in(path, found.plan)
    # What is only printed again must not take the place of what was measured since, unasked.
    is_left = out is None and before is not None and held is not None
    is_written = (found.gained or bool(found.base)) and not is_left
    if is_written:
        plan_file(found, measured_on(host)).write(path)
    named = str(path) if out is not None or not found.gained else "auto"
    use = _use(named, target, script, technique, python)
    more = {"plan_file": str(path), "use": use} if is_written else _NO_PLAN
    document = _document(found, more, target, host, None if before is None else kept.when)
    if is_left and found.gained:
        said = _left(found.plan.hash, path)
    else:
        said = _written(found, path, use, held) if is_written else _not_written(path, found, script)
    _tell(found, document, said, json=json, every=every)
    keep(run_dir, document, script)
    write_page(page, document)
    if exit_code and not found.gained:
        return NOT_PROVEN if found.unproven else NOTHING_TO_GAIN
    return 0


def _tell(found: Any, document: Mapping[str, Any], said: str, *, json: bool, every: bool) -> None:
    from hotlap.report import jsonout
    from hotlap.report import tuning as text
    from hotlap.report.terminal import page_console

    if json:
        jsonout.write(document)
    else:
        text.page(found, page_console(), every=every)
        page_console().print(f"\n{said}")


def _document(
    found: Any, more: Mapping[str, Any], target: Target, host: Any, kept_at: str | None
) -> dict[str, Any]:
    data = {**found.to_json(), **more, "is_kept": kept_at is not None}
    return signed("tuning", data, host, target.typed, "tune", kept_at)


def _use(plan: str, target: Target, script: Subject, techniques: Sequence[str], python: str) -> str:
    """Return the command line that trains with a plan as it was measured."""
    from hotlap.cli.parser import app_of, options_of

    is_recipe = script.step_owner == "engine"
    command = import_module(f"hotlap.cli.{'train' if is_recipe else 'run'}").COMMAND
    words = ["hotlap", command.name, "--plan", plan]
    for each in techniques:
        words += ["--technique", each]
    if python != sys.executable and not is_recipe:
        words += ["--python", python]
    if split(target.words, options_of(app_of(command)))[0]:
        # A word of the script's is also an option of that command.
        words.append("--")
    return shlex.join([*words, *target.words])


def _other_plan_in(path: Path, plan: Any) -> Any:
    """Return the plan file that is there, None without one or if it has this plan."""
    from hotlap.plan.file import PlanFile

    try:
        held = PlanFile.read(path)
    except (HotlapError, OSError):
        return None
    return None if held.plan == plan else held


def _written(found: Any, path: Path, use: str, held: Any) -> str:
    said = f"Plan {found.plan.hash} written to {path}. To use it: {use}"
    if held is not None:
        gain = "" if held.speedup is None else f" ({held.speedup.median:.2f}x when it was measured)"
        said += f"\nIt replaced plan {held.plan.hash}{gain}."
    return said


def _left(plan_hash: str, path: Path) -> str:
    return (
        f"Plan {plan_hash} was not written: {path} holds another one, which was left as it is. Use "
        f"--out {path} to replace it, or --again to measure again."
    )


def _not_written(path: Path, found: Any, script: Subject) -> str:
    said = "No plan file was written."
    if script.step_owner == "script":
        said += (
            " `hotlap run` without one applies exact techniques only, whether or not a gain of "
            "them was measured here."
        )
    if found.outcome == "could_not_tell":
        said = f"Type the same command again to continue from what was measured. {said}"
    if path.exists():
        said += f" {path}, from an earlier tuning, was left as it is."
    return said


COMMAND = Command(
    name="tune",
    function=tune,
    takes_script=True,
    examples=(
        "hotlap tune train.py --epochs 10 --budget 3m    # --epochs is the script's",
        "hotlap tune train.py --page tuning.html    # the result as a page to look at",
        "hotlap tune train.py --run-dir runs/1    # kept in the run's folder, too",
        "hotlap tune --accept exact -m package.train",
        "hotlap tune recipe.py --lr 3e-4 --accept statistical    # --lr is the recipe's",
    ),
    exit_codes=f"{EXIT_CODES} With --exit-code also 3: nothing to gain, 4: not proven.",
)
