"""`hotlap env`: what this machine can do, and what is wrong with its set-up."""

from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag
from hotlap.errors import RunError
from hotlap.host.ceilings import Ceilings, measure
from hotlap.host.facts import Host
from hotlap.host.kept_ceilings import keep
from hotlap.host.problems import Problem, problems
from hotlap.report import environment, jsonout
from hotlap.report.terminal import page_console, progress_console

Quick = Annotated[
    bool,
    Parameter(name="--quick", help="Do not measure ceilings: show the system's facts only."),
]


def env(*, quick: Quick = False, as_json: JsonFlag = False) -> int:
    """Show what this machine can do, its measured ceilings, and what is wrong with its set-up.

    Ceilings are the fastest matrix products and memory copies seen in a few seconds. While others
    use the machine they come out too low: the load is shown beside them, and the best that was
    ever seen of a device is kept.
    """
    host = Host.detect()
    found = problems(host)
    ceilings: list[Ceilings] = []
    if not quick and host.torch is not None:
        ceilings, failed = _ceilings(host)
        found += failed
    if as_json:
        jsonout.write(environment.to_json(host, ceilings, found))
    else:
        environment.show(page_console(), host, ceilings, found)
    return 0


def _ceilings(host: Host) -> tuple[list[Ceilings], list[Problem]]:
    progress = progress_console()
    devices = ["cpu", *(["cuda"] if host.gpus and host.torch_cuda else [])]
    measured: list[Ceilings] = []
    failed: list[Problem] = []
    for device in devices:
        progress.print(f"measuring the ceilings of {device} ...")
        try:
            measured.append(keep(host, measure(busy_cores=host.busy_cores, device=device)))
        except RunError as error:
            remedy = f"Check that `python -c 'import torch'` works, and that torch uses {device}."
            failed.append(Problem("no_ceilings", str(error), remedy))
    return measured, failed


COMMAND = Command(
    "env",
    env,
    examples=(
        "hotlap env                 # ceilings measured, in about five seconds",
        "hotlap env --quick --json  # facts only, for a script to read",
    ),
)
