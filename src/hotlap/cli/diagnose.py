"""`hotlap diagnose`: its options; a script's time or memory is diagnosed, or a trace is read."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.keeping import RunDir, check_run_dir, keep
from hotlap.cli.options import Duration, JsonFlag
from hotlap.cli.page import PageFile, check_page, signed, write_page
from hotlap.cli.script import detect_host, script_or_recipe
from hotlap.cli.starting import say
from hotlap.cli.target import Target
from hotlap.cli.trials import lab_of
from hotlap.diagnosis.outfiles import check_json
from hotlap.errors import UsageError
from hotlap.lab.subject import Subject
from hotlap.trace.chrome.reading import is_trace_file


def diagnose(
    *,
    target: Target,
    budget: Duration = 60.0,
    hide: tuple[str, ...] = (),
    rule: tuple[str, ...] = (),
    technique: tuple[str, ...] = (),
    python: Annotated[str, Parameter(help="Python that runs the script.")] = sys.executable,
    profile: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="cpu|cuda|memory",
            help="Record some steps with torch.profiler, and only this of them; may be given "
            "several times.",
        ),
    ] = (),
    trace: Annotated[
        str | None,
        Parameter(
            metavar="DIR",
            help="Folder for the recorded trace, which TensorBoard and ui.perfetto.dev open.",
        ),
    ] = None,
    memory: Annotated[
        bool, Parameter(help="Say where the memory goes, and what autocast does.")
    ] = False,
    svg: Annotated[str | None, Parameter(help="File for the timeline of --memory.")] = None,
    snapshot: Annotated[
        str | None, Parameter(help="File for PyTorch's memory viewer; --memory on CUDA only.")
    ] = None,
    out: Annotated[str | None, Parameter(help="File for the JSON document.")] = None,
    run_dir: RunDir = None,
    page: PageFile = None,
    json: JsonFlag = False,
) -> int:
    """Say why a training script is slow, with the measured cost of each cause.

    The script runs unedited, on a copy-on-write view of your files, several times. A recipe, a file
    that imports hotlap and has a function `task`, is trained by hotlap's engine instead, under the
    empty plan; with --memory, under the plan that `hotlap train` uses without --plan.

    Instead of a script, a trace that torch.profiler has exported (.json, .json.gz) can be given.
    The report then shows its phases, its idle time, the longest gaps and what stood in them.

    Parameters
    ----------
    budget
        Total time, trials included. The first step must be taken within it, or within 30 s; a step
        that has begun is not interrupted.
    hide
        Pattern of files that trials must not see, such as the script's own checkpoint.
    rule
        A third-party rule, as module:NAME; may be given several times.
    technique
        A third-party technique that such a rule proposes, as module:NAME.
    """
    if out is not None:
        check_json(Path(out), f"--out {out}")
    check_page(page)
    tell = partial(_tell, json=json, out=out, page_file=page, typed=target.typed)
    if target.script is not None and is_trace_file(target.script):
        others = {
            "--hide": hide,
            "--rule": rule,
            "--technique": technique,
            "--profile": profile,
            "--trace": trace,
            "--memory": memory,
            "--svg": svg,
            "--snapshot": snapshot,
            "--run-dir": run_dir,
            "--page": page,
        }
        return _read_trace(target, [name for name, value in others.items() if value], tell)
    from hotlap.diagnosis.causes import diagnose as find_causes
    from hotlap.diagnosis.profile import request_profile
    from hotlap.report import diagnosis as text
    from hotlap.rules import registry

    script = script_or_recipe(target, python)
    check_run_dir(run_dir, script)
    tell = partial(tell, keeps=lambda data: keep(run_dir, data, script))
    if svg is not None and not memory:
        raise UsageError(
            f"--svg {svg} cannot be used without --memory. Add --memory, or remove --svg."
        )
    if snapshot is not None and not memory:
        raise UsageError(
            f"--snapshot {snapshot} cannot be used without --memory. Add --memory, or remove "
            "--snapshot."
        )
    if memory and (profile or trace is not None):
        raise UsageError(
            "--memory cannot be used with --profile or --trace. Run `hotlap diagnose` twice: once "
            "with --memory, and once with --profile or --trace."
        )
    if memory:
        return _diagnose_memory(script, budget, hide, svg, snapshot, tell)
    if script.kind == "recipe":
        say(f"`{script}` is a recipe: hotlap's engine trains it, under the empty plan")
    registry(rule)
    host = detect_host()
    request = request_profile(profile, trace, host)
    with lab_of(script, hide=hide, techniques=technique) as lab:
        found = find_causes(lab, host, budget_s=budget, rules=rule, profile=request, progress=say)
    tell(found, text.page, "diagnosis", host)
    # The report's notes say why.
    return 1 if request is not None and found.profile is None else 0


def _tell(
    found: Any,
    page: Callable[[Any, Any], None],
    kind: str = "",
    host: Any = None,
    *,
    keeps: Callable[[dict[str, Any]], None] = lambda _: None,
    json: bool,
    out: str | None,
    page_file: str | None,
    typed: tuple[str, ...],
) -> int:
    """Print what was found, and write it to files if that was asked for.

    Args:
        found: a record with `to_json`.
        page: prints it.
        kind: of the document; empty for one of which there is no page.
        host: where it was measured.
        keeps: takes the document for a run's folder.
        json: print the document.
        out: file for the document.
        page_file: file for the HTML page.
        typed: the tokens behind the command's name.
    """
    from hotlap.report import jsonout
    from hotlap.report.terminal import page_console

    data = found.to_json()
    if kind:
        data = signed(kind, data, host, typed, "diagnose")
    if out is not None:
        with open(out, "w", encoding="utf-8") as file:
            jsonout.write(data, file)
    if json:
        jsonout.write(data)
    else:
        page(found, page_console())
    keeps(data)
    write_page(page_file, data)
    return 0


def _read_trace(target: Target, others: Sequence[str], tell: Callable[..., int]) -> int:
    from hotlap.report import profile as text
    from hotlap.trace.chrome.reading import read_trace
    from hotlap.trace.chrome.summary import summarize

    path = Path(target.script or "")
    if target.args:
        raise UsageError(
            f"'{path}' is a trace, which takes no arguments. Remove: {' '.join(target.args)}."
        )
    if others:
        raise UsageError(
            f"{', '.join(others)} cannot be used with '{path}', which is a trace and not a script. "
            f"Remove {', '.join(others)}, or give the script instead of the trace."
        )
    summary = summarize(read_trace(path))
    found = _OfTrace(path, summary)
    return tell(found, lambda _, console: text.page(summary, path, console))


@dataclass(frozen=True)
class _OfTrace:
    path: Path
    summary: Any

    def to_json(self) -> dict[str, Any]:
        return {"trace": str(self.path), **self.summary.to_json()}


def _diagnose_memory(
    script: Subject,
    budget: float,
    hide: tuple[str, ...],
    svg: str | None,
    snapshot: str | None,
    tell: Callable[..., int],
) -> int:
    from hotlap.diagnosis.memory import find_memory
    from hotlap.diagnosis.outfiles import check_snapshot, check_svg
    from hotlap.host.facts import Host
    from hotlap.report import memory as text
    from hotlap.techniques import EXACT_PLAN

    # Before anything starts: a measurement is not to be lost to a wrong path.
    if svg is not None:
        check_svg(Path(svg), f"--svg {svg}")
    if snapshot is not None:
        check_snapshot(Path(snapshot), f"--snapshot {snapshot}", Host.detect())
    if script.kind == "recipe":
        say(f"`{script}` is a recipe: hotlap's engine trains it under {EXACT_PLAN}")
    host = detect_host()
    with lab_of(script, hide=hide) as lab:
        to = Path(snapshot).absolute() if snapshot is not None else None
        found = find_memory(lab, budget_s=budget, snapshot=to, progress=say)
    if svg is not None:
        text.write_svg(found.trace, Path(svg))
    tell(found, text.page, "memory", host)
    # The report's notes say why.
    return 1 if snapshot is not None and not found.trace.has_snapshot else 0


COMMAND = Command(
    name="diagnose",
    function=diagnose,
    takes_script=True,
    examples=(
        "hotlap diagnose train.py --epochs 10        # --epochs is the script's",
        "hotlap diagnose --json -m package.train",
        "hotlap diagnose train.py --page why.html   # the same as a page to look at",
        "hotlap diagnose train.py --run-dir runs/1   # and into the run's folder",
        "hotlap diagnose train.py --trace traces    # and a trace with named modules",
        "hotlap diagnose trace.json.gz              # of torch.profiler, from anywhere",
        "hotlap diagnose train.py --memory --svg memory.svg   # where the memory goes",
        "hotlap diagnose train.py --memory --snapshot a.pickle   # CUDA: pytorch.org/memory_viz",
        "hotlap diagnose recipe.py --lr 3e-4    # --lr is the recipe's",
    ),
)
