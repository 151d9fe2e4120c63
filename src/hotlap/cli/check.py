"""`hotlap check`: does a plan still apply, hold and gain?"""

import sys
from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import EXIT_CODES, Command
from hotlap.cli.options import Duration, JsonFlag
from hotlap.cli.script import detect_host, plan_given, script_or_recipe, steps_given
from hotlap.cli.starting import say
from hotlap.cli.target import Target
from hotlap.cli.trials import lab_of

NOTHING_TO_GAIN = 3
NOT_PROVEN = 4


def check(
    *,
    target: Target,
    plan: Annotated[str, Parameter(help="The plan file, or `auto` for the tuned one.")] = "auto",
    steps: int = 256,
    budget: Duration = 60.0,
    technique: tuple[str, ...] = (),
    hide: tuple[str, ...] = (),
    python: Annotated[str, Parameter(help="Python that runs the script.")] = sys.executable,
    exit_code: bool = False,
    json: JsonFlag = False,
) -> int:
    """Say whether a plan still applies to a script, still holds, and still gains.

    Made for continuous integration: a change of the script, of its data or of torch may invalidate
    a plan. The plan is proven again on this host, and raced against the plain run.

    Parameters
    ----------
    steps
        Number of steps that each run of the proof is followed for.
    budget
        How long the race may take; the proof takes what its steps take.
    technique
        A third-party technique that the plan names, as module:NAME; may be given several times.
    hide
        Pattern of files that trials must not see, such as the script's own checkpoint.
    exit_code
        End with 4 if the verdict is weaker than the plan file's, and with 3 if a technique does
        not apply or nothing is gained.
    """
    from hotlap.attach.plan_choice import plan_path
    from hotlap.report import jsonout
    from hotlap.report.checking import page_of_checked
    from hotlap.report.terminal import page_console
    from hotlap.tuning.checking import check_plan

    script = script_or_recipe(target, python)
    given = str(plan_path(script)) if plan == "auto" else plan
    file = plan_given(given, technique)
    detect_host()
    with lab_of(script, hide=hide, techniques=technique) as lab:
        found = check_plan(lab, file, steps=steps_given(steps), budget_s=budget, progress=say)
    if json:
        jsonout.write(found.to_json())
    else:
        page_of_checked(found, page_console())
    if exit_code and not found.holds:
        return NOT_PROVEN
    return NOTHING_TO_GAIN if exit_code and not (found.applies and found.gains) else 0


COMMAND = Command(
    name="check",
    function=check,
    takes_script=True,
    examples=(
        "hotlap check train.py --plan train.plan.toml --exit-code",
        "hotlap check --plan auto --json -m package.train",
    ),
    exit_codes=f"{EXIT_CODES} With --exit-code also 3: it does not apply or gains nothing, 4: not "
    "proven.",
)
