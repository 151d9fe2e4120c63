"""`hotlap.diagnose` from Python: makes a script or recipe of its arguments, and diagnoses it."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotlap.attach.entry import Script
from hotlap.diagnosis.causes import diagnose as find_causes
from hotlap.diagnosis.findings import Diagnosis
from hotlap.diagnosis.profile import request_profile
from hotlap.errors import MissingFile, UsageError
from hotlap.host.facts import Host
from hotlap.lab.call_arguments import check_call, recipe_path, to_command_line
from hotlap.lab.subject import RecipeRun, Subject
from hotlap.lab.trial import Lab
from hotlap.recipe_detection import is_recipe
from hotlap.task import Task


def diagnose(
    subject: str | os.PathLike[str] | Callable[..., Task],
    *,
    arguments: Mapping[str, Any] | Sequence[str] = (),
    budget: float = 60.0,
    device: str | None = None,
    rules: Sequence[str] = (),
    techniques: Sequence[str] = (),
    profile: str | Sequence[str] = (),
    trace: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Find out why a training script or a recipe is slow, with the measured cost of each cause.

    It runs several times in processes of its own, on a copy-on-write view of the files. Nothing of
    it runs in this process.

    Args:
        subject: the path of a script, which runs as it is, or the path or the function `task` of a
            recipe, which hotlap's engine trains under the empty plan.
        arguments: for a script its command line, as in `["--epochs", "10"]`; for a recipe what its
            function is called with, by name.
        budget: seconds that everything may take together.
        device: of a recipe, as torch names it; the first accelerator if None, else the CPU.
        rules: rules from outside, as `module:NAME`.
        techniques: techniques from outside that rules propose, as `module:NAME`.
        profile: what torch.profiler records besides, of `cpu`, `cuda` and `memory`; nothing if
            empty, unless `trace` is given.
        trace: folder that the recorded trace is written to, for TensorBoard and Perfetto.
        progress: called with a line now and then.

    Raises:
        UsageError: what was given is neither, or the recipe is wrong.
        TrialError: the plain script or recipe itself cannot be measured.

    >>> hotlap.diagnose("train.py", budget=30).findings        # doctest: +SKIP
    """
    check_call("hotlap.diagnose", budget)
    run = run_of(subject, arguments, device)
    host = Host.detect()
    kinds = (profile,) if isinstance(profile, str) else tuple(profile)
    request = request_profile(kinds, trace, host, ("profile=", "trace="))
    with Lab(run, techniques=tuple(techniques)) as lab:
        return find_causes(
            lab, host, budget_s=budget, rules=rules, profile=request, progress=progress
        )


def run_of(subject: Any, arguments: Any, device: str | None) -> Subject:
    """Return what the arguments of a call describe.

    Raises:
        UsageError: they fit neither a script nor a recipe.
        MissingFile: there is no such file.
    """
    is_path = isinstance(subject, str | os.PathLike)
    if is_path and not Path(subject).is_file():
        raise MissingFile(
            f"'{subject}' was not found. Expected: the path of a script or a recipe. Check the "
            "path."
        )
    if not is_path or is_recipe(Path(subject)):
        path = recipe_path(subject, "hotlap.diagnose")
        if not isinstance(arguments, Mapping) and arguments != ():
            raise UsageError(
                f"arguments={arguments!r} cannot be used with a recipe. Expected: a dict of the "
                "parameters of task(), as in {'epochs': 10}."
            )
        typed = to_command_line(dict(arguments))
        return RecipeRun(path=str(path), args=typed, cwd=os.getcwd(), device=device)
    if isinstance(arguments, Mapping | str):
        raise UsageError(
            f"arguments={arguments!r} cannot be used with a script. Expected: a list of "
            "command-line arguments, as in ['--epochs', '10']."
        )
    if device is not None:
        raise UsageError(
            f"device={device!r} cannot be used with a script, which chooses its device itself. "
            "Remove `device` from the call, and set the device in the script."
        )
    return Script(path=str(subject), args=tuple(map(str, arguments)), cwd=os.getcwd())
