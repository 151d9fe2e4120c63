"""`hotlap explain`: the page of a technique, a finding, an error or a plan file."""

from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag


def explain(
    name: Annotated[
        str | None, Parameter(help="What to explain. Without it, all names are listed.")
    ] = None,
    *,
    json: JsonFlag = False,
) -> int:
    """Explain a technique, a finding, a common belief, an error, verdicts, or a plan file.

    Terms of the reports, such as `undecided`, have a page too. So does an error message of torch
    or of the system: give it in quotes.
    """
    from hotlap.report import explaining, jsonout
    from hotlap.report.terminal import page_console

    page = explaining.explain(name)
    if json:
        jsonout.write({"name": page.name, "kind": page.kind, "text": page.text})
    else:
        console = page_console()
        # It is wrapped already: the console would wrap the lines of code once more.
        console.print(page.render(console.width), soft_wrap=True)
    return 0


COMMAND = Command(
    name="explain",
    function=explain,
    examples=(
        "hotlap explain resident",
        "hotlap explain per_item_decode",
        "hotlap explain empty_cache",
        "hotlap explain verdicts",
        "hotlap explain train.plan.toml",
        'hotlap explain "mat1 and mat2 shapes cannot be multiplied (64x784 and 780x10)"',
        'hotlap explain "$(tail -n 20 train.log)"',
    ),
    takes_text=True,
)
