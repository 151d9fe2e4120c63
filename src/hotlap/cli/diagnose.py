"""`hotlap diagnose`: why is it slow?"""

import sys
from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import Command, Duration, JsonFlag, ScriptTarget
from hotlap.cli.script import detect_host, lab_of, say, script_of


def diagnose(
    *,
    target: ScriptTarget,
    budget: Duration = 60.0,
    hide: tuple[str, ...] = (),
    python: Annotated[str, Parameter(help="Python that runs the script.")] = sys.executable,
    json: JsonFlag = False,
) -> int:
    """Say why a training script is slow, with the measured cost of each cause.

    The script runs unedited, on a copy-on-write view of your files, several times.

    Parameters
    ----------
    budget
        How long the plain script is watched at most; trials come on top.
    hide
        Pattern of files that trials must not see, such as the script's own checkpoint.
    """
    from hotlap.diagnose.causes import diagnose as find_causes
    from hotlap.report import diagnosis as text
    from hotlap.report import jsonout
    from hotlap.report.terminal import page_console

    with lab_of(script_of(target, python), hide=hide) as lab:
        found = find_causes(lab, detect_host(), budget_s=budget, progress=say)
    if json:
        jsonout.write(found.to_json())
    else:
        text.page(found, page_console())
    return 0


COMMAND = Command(
    name="diagnose",
    function=diagnose,
    takes_script=True,
    examples=(
        "hotlap diagnose train.py --epochs 10        # --epochs is the script's",
        "hotlap diagnose --json -m package.train",
    ),
)
