"""Runs a subject in the role `observe`, returns its trace; predicts a whole run's time from it."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotlap.lab import first_steps
from hotlap.lab.trial import Lab, Trial
from hotlap.plan import Plan
from hotlap.trace import store
from hotlap.trace.schema import HotLine, Trace

_LEAST_TIMED = 2
"""Steps that a watch takes at least: the first one does not count."""
_SLOWEST = 5.0
"""How many times longer than its first step a step may be before the script is thought to hang."""
_ANY_STEPS = 10**9


@dataclass(frozen=True)
class Observation:
    """A trace, and which techniques took effect in it."""

    trace: Trace
    techniques: list[dict[str, str]]
    """{name, state, why}, as the process itself proved it."""
    trial: Trial | None = None
    """The process, if it was to stay and has not ended: it waits, and can be raced."""
    files: tuple[str, ...] = ()
    """The user's files that the process had imported."""
    paces: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Other ranks -> where their time goes; none if one process trains."""


def watch(
    lab: Lab,
    plan: Plan | None = None,
    *,
    seconds: float,
    epochs: int = 1,
    naming_s: float = 0.0,
    steps: int | None = None,
    stays: bool = False,
    autocast: str = "",
    autocast_turns: int = 0,
    start_up_s: float | None = None,
    within_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Observation:
    """Observe the script for whole epochs, as far as `seconds` reach.

    Args:
        lab: where the trial is held.
        plan: what is applied to it.
        seconds: how long steps are timed at most; a step that has begun is not interrupted.
        epochs: whole epochs that are enough.
        naming_s: seconds of further steps in which lines are sampled.
        steps: steps that are timed at most, None for as many as `seconds` has.
        stays: leave the process of a script there, to be raced, see `Duel`.
        autocast: what is done to autocast, see `hotlap.trial.autocast_gate`; nothing if empty.
        autocast_turns: steps after which it is switched.
        start_up_s: seconds within which the first step must be taken; a minute and more if None.
        within_s: seconds within which all must be over if steps are short: a script that hangs
            later is noticed then; if None, a minute after the last step was to be over.
        progress: told how long it takes, where a step is long.

    Raises:
        TrialError: it crashed, hung, or never trained.
    """
    report, trace, trial = lab.retry_if_address_in_use(
        lambda: _observe(
            lab,
            plan,
            progress,
            start_up_s=start_up_s or first_steps.start_up_s(seconds),
            within_s=within_s,
            seconds=seconds,
            epochs=epochs,
            naming_s=naming_s,
            steps=_ANY_STEPS if steps is None else steps,
            stays=stays,
            **({"autocast": autocast, "autocast_turns": autocast_turns} if autocast else {}),
        )
    )
    if plan is None:
        lab.plain_start_s = trace.setup_s
    if trace.ended == "script":
        trace = with_length(trace, report["steps"])
    files = tuple(str(lab.subject.folder / path) for path in report["files"])
    return Observation(trace, report["techniques"], trial, files, report["paces"])


def with_length(trace: Trace, steps: int) -> Trace:
    """Return the trace of a run that was seen to its end: its steps were counted."""
    words = f"the run ended by itself after {steps} steps"
    return replace(trace, facts=replace(trace.facts, planned_steps=steps, planned_why=words))


def watch_lines(lab: Lab, *, seconds: float) -> tuple[HotLine, ...]:
    """Run the script once more and only sample its lines, from its first step on.

    For a run that has ended before there was time for it.
    """
    _, trace, _ = _observe(
        lab,
        None,
        lambda _: None,
        start_up_s=first_steps.start_up_s(seconds),
        seconds=seconds,
        epochs=10**9,
        naming_s=seconds,
        names_from_start=True,
    )
    return tuple(trace.lines)


def _observe(
    lab: Lab,
    plan: Plan | None,
    progress: Callable[[str], None],
    *,
    start_up_s: float,
    seconds: float,
    naming_s: float,
    within_s: float | None = None,
    steps: int = _ANY_STEPS,
    stays: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], Trace, Trial | None]:
    """Return the report and the trace of one observed run, and its process if that stays.

    How long it may take follows from its first steps.
    """
    folder = Path(tempfile.mkdtemp(prefix="trace-", dir=lab.exchange))
    more = {"seconds": seconds, "naming_s": naming_s, "steps": steps, "stays": stays, **options}
    trial = lab.start("observe", plan, folder=str(folder), **more)
    is_there = False

    def silence_s(step_s: float) -> float:
        if _LEAST_TIMED * step_s > seconds:
            progress(
                f"a step takes {step_s:.1f} s and cannot be interrupted: watching takes about "
                f"{_LEAST_TIMED * step_s:.0f} s"
            )
        watched_s = seconds + naming_s
        return watched_s + max(first_steps.pause_s(trial, watched_s, within_s), _SLOWEST * step_s)

    try:
        message = first_steps.report_of(trial, start_up_s, silence_s)
        trace = replace(store.read(folder), ended=message["ended"])
        is_there = stays and trace.ended != "script" and not trial.ranks.are_there
        message["paces"] = trial.ranks.paces
        return message, trace, trial if is_there else None
    finally:
        if not is_there:
            trial.kill()
        shutil.rmtree(folder)
