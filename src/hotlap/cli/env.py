"""`hotlap env`: facts, ceilings and problems of this machine; with `--watch`, live figures."""

import time
from typing import Annotated

from cyclopts import Parameter
from rich.live import Live

from hotlap.cli.command import Command
from hotlap.cli.durations import parse_duration
from hotlap.cli.options import JsonFlag
from hotlap.errors import RunError, UsageError
from hotlap.host.ceilings import Ceilings, measure
from hotlap.host.facts import Host
from hotlap.host.kept_ceilings import keep
from hotlap.host.monitor import Monitor, open_gpus
from hotlap.host.problems import Problem, problems
from hotlap.report import environment, jsonout, watching
from hotlap.report.terminal import page_console, progress_console
from hotlap.track.sampler import EVERY_S, check_every

Quick = Annotated[
    bool,
    Parameter(name="--quick", help="Do not measure ceilings: show the system's facts only."),
]


def env(
    *,
    quick: Quick = False,
    watch: bool = False,
    every: Annotated[
        str | None, Parameter(help="With --watch: time between two samples; 2s if none.")
    ] = None,
    pid: Annotated[
        int | None,
        Parameter(
            help="With --watch: a process that is watched with its children, until it has ended."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Show what this machine can do, its measured ceilings, and what is wrong with its set-up.

    Ceilings are the fastest matrix products and memory copies seen in a few seconds. While others
    use the machine they come out too low: the load is shown beside them, and the best that was
    ever seen of a device is kept.

    Parameters
    ----------
    watch
        Show live what is busy: CPU, memory, disk, network and GPUs, until Ctrl-C.
    """
    if watch:
        every_s = EVERY_S if every is None else parse_duration(every, "--every")
        return _watch(every_s, pid, as_json=as_json)
    for option, given in (("--pid", pid), ("--every", every)):
        if given is not None:
            raise UsageError(
                f"{option} {given} works only with --watch. Add --watch, or remove {option}."
            )
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


def _watch(every_s: float, pid: int | None, *, as_json: bool) -> int:
    """Show figures until Ctrl-C, or until the process has ended."""
    if as_json:
        raise UsageError(
            "--json cannot be used with --watch, which shows live figures until Ctrl-C. Remove "
            "--watch for one JSON document about this machine, or remove --json for live figures. "
            "To record such figures as JSON lines while a model trains, start the training with "
            "`hotlap run --run-dir DIR` or `hotlap train --run-dir DIR`."
        )
    check_every(every_s)
    gpus, why = open_gpus()
    monitor, means = Monitor(pid, gpus, watches_process=pid is not None), watching.Means()
    console = page_console()
    if why:
        progress_console().print(why)
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                if monitor.has_ended:
                    break
                figures = monitor.sample()
                shown = watching.table(figures, means.add(figures))
                if console.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    console.print(shown)
    except KeyboardInterrupt:
        # How watching ends.
        return 0
    progress_console().print(f"process {pid} has ended")
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
        "hotlap env --watch         # what is busy now, live",
    ),
)
