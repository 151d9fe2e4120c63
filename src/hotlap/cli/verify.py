"""`hotlap verify`: does one plan learn what another one does?"""

import sys
from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import EXIT_CODES, Command
from hotlap.cli.keeping import RunDir, check_run_dir, keep
from hotlap.cli.options import JsonFlag
from hotlap.cli.page import signed
from hotlap.cli.script import plan_given, script_or_recipe, steps_given
from hotlap.cli.starting import say
from hotlap.cli.target import Target
from hotlap.cli.trials import lab_of

NOT_PROVEN = 4


def verify(
    a: Annotated[str, Parameter(help="Plan file of the reference, or `plain`.")],
    b: Annotated[str, Parameter(help="Plan file to compare with it, or `plain`.")],
    /,
    *,
    target: Target,
    steps: int = 256,
    accept: str = "rounding",
    technique: tuple[str, ...] = (),
    hide: tuple[str, ...] = (),
    python: Annotated[str, Parameter(help="Python that runs the script.")] = sys.executable,
    exit_code: bool = False,
    run_dir: RunDir = None,
    json: JsonFlag = False,
) -> int:
    """Say whether a script learns the same under plan B as under plan A, with the evidence.

    A and B are plan files, or the word `plain` for no plan. The script runs unedited, on a
    copy-on-write view of your files: under A and B, on a CPU at the same time if memory holds both,
    and once more to repeat some of B's steps in float64. `hotlap explain verdicts` says what each
    check sees.

    Parameters
    ----------
    steps
        Number of steps that each run is followed for. Where an epoch ends soon after, the runs are
        followed until the next evaluation.
    accept
        The weakest verdict that is good enough for --exit-code: exact, rounding or statistical.
    technique
        A third-party technique that a plan names, as module:NAME; may be given several times.
    hide
        Pattern of files that trials must not see, such as the script's own checkpoint.
    exit_code
        End with 4 if the verdict is weaker than --accept.
    """
    from hotlap.host.facts import Host
    from hotlap.lab.verdict import TIERS
    from hotlap.report import jsonout
    from hotlap.report.checking import page_of_compared
    from hotlap.report.terminal import page_console
    from hotlap.tuning.checking import compare
    from hotlap.tuning.stages import check_request

    script = script_or_recipe(target, python)
    check_request(accept, (), technique)
    check_run_dir(run_dir, script)
    first, second = (plan_given(given, technique).plan for given in (a, b))
    with lab_of(script, hide=hide, techniques=technique) as lab:
        found = compare(lab, first, second, steps=steps_given(steps), progress=say)
    document = signed("verdict", found.to_json(), Host.detect(), target.typed, "verify")
    if json:
        jsonout.write(document)
    else:
        page_of_compared(found, page_console())
    keep(run_dir, document, script)
    is_proven = TIERS.index(found.verdict.tier) <= TIERS.index(accept)
    return NOT_PROVEN if exit_code and not is_proven else 0


COMMAND = Command(
    name="verify",
    function=verify,
    takes_script=True,
    positionals=("A", "B"),
    examples=(
        "hotlap verify plain train.plan.toml train.py --epochs 10    # --epochs is the script's",
        "hotlap verify old.toml new.toml --steps 1000 --json -m package.train",
    ),
    exit_codes=f"{EXIT_CODES} With --exit-code also 4: not proven.",
)
