"""`hotlap.find_micro_batch`: the largest micro-batch that fits, and the fastest, from Python."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotlap.host.facts import Host
from hotlap.host.memory import available_bytes
from hotlap.lab.call_arguments import check_call, recipe_path, to_command_line
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN, check, registry
from hotlap.tuning.micro_batches.kept import KeptMicroBatch, kept_micro_batch
from hotlap.tuning.micro_batches.result import MicroBatch
from hotlap.tuning.micro_batches.trials import MicroBatchTrials, measure

SECONDS = 30.0
"""For the turns of the sizes that fit."""
_SHARE = 0.95
"""Of what is available: a trial that takes more is ended before the system ends another process."""


def find_micro_batch(
    task: str | os.PathLike[str] | Callable[..., Task],
    plan: Plan | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    memory: int | None = None,
    seconds: float = SECONDS,
    again: bool = False,
    techniques: Sequence[str] = (),
    device: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MicroBatch:
    """Find the largest micro-batch that fits into memory, and the fastest one, by trials.

    Each trial is a fresh process that makes the task again, so what is given is the recipe that
    makes it, not the task. What was found is kept, and given again while the recipe is unchanged.

    Args:
        task: the path of a recipe, or its function `task`.
        plan: how it is executed otherwise; exact techniques only if None.
        arguments: what the function is called with, by name.
        memory: bytes to fit into; None for what is free on the device, of a CPU 90 %.
        seconds: about how long sizes take turns.
        again: make all trials again, whatever is kept.
        techniques: techniques from outside, as `module:NAME`, importable in a fresh process.
        device: as torch names it; the first accelerator if None, else the CPU.
        progress: called with a line now and then.

    Raises:
        UsageError: what was given is no recipe, or the recipe is wrong, or the step does not fit
            and cannot be split.
        RunError: not even a micro-batch of one sample fits.
        TrialError: a trial failed for another reason than memory.

    >>> found = hotlap.find_micro_batch("recipe.py")         # doctest: +SKIP
    >>> hotlap.train(task(), found.plan())                   # doctest: +SKIP
    """
    check_call("hotlap.find_micro_batch", seconds)
    path = recipe_path(task, "hotlap.find_micro_batch")
    recipe = RecipeRun(
        path=str(path), args=to_command_line(arguments or {}), cwd=os.getcwd(), device=device
    )
    chosen = EXACT_PLAN if plan is None else plan
    check(chosen, registry(tuple(techniques)))
    kept = kept_micro_batch(
        recipe, chosen, Host.detect(), memory=memory, techniques=techniques, again=again
    )
    return find(
        recipe,
        chosen,
        kept,
        memory=memory,
        seconds=seconds,
        techniques=tuple(techniques),
        progress=progress,
    )


def find(
    recipe: RecipeRun,
    plan: Plan,
    kept: KeptMicroBatch,
    *,
    memory: int | None,
    seconds: float = SECONDS,
    techniques: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> MicroBatch:
    """Return what is kept, or what trials find, which is kept then.

    Args:
        recipe: what is trained.
        plan: how it is executed otherwise.
        kept: what is kept of it.
        memory: bytes to fit into, None for what the device has.
        seconds: about how long sizes take turns.
        techniques: techniques from outside, as `module:NAME`.
        progress: called with a line now and then.

    Raises:
        See `find_micro_batch`.
    """
    before = kept.usable
    if before is not None and not _is_short_of_memory(before, memory):
        progress("micro-batches were measured before, and all is unchanged; again: --again")
        return before
    begun = time.time()
    # The trials themselves enforce `memory`, which may be that of another device.
    most = int(available_bytes() * _SHARE)
    with Lab(recipe, techniques=techniques, memory_bytes=most) as lab:
        trials = MicroBatchTrials(lab, plan.without("micro_batch"), memory, progress)
        found = measure(trials, seconds=seconds, below=kept.too_large, progress=progress)
    files = [str(recipe.folder / each) for each in trials.facts["files"]]
    changed = [path for path in files if os.path.exists(path) and os.path.getmtime(path) >= begun]
    if changed:
        # Which of them were measured, nobody knows.
        progress(f"{changed[0]} was changed meanwhile: what was found is not kept")
    else:
        kept.keep(found, files)
    return found


def _is_short_of_memory(found: MicroBatch, memory: int | None) -> bool:
    """True if less memory is free now than what was found needs."""
    if memory is not None or not found.device.startswith("cpu"):
        return False
    peaks = [each.peak_bytes for each in found.trials if each.size >= found.fastest]
    return min(peaks, default=0) > available_bytes()
