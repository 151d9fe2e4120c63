"""Runs a script in the role `count`, and returns what one of its steps computes."""

import shutil
import tempfile
from pathlib import Path

from hotlap.errors import TrialError
from hotlap.lab import first_steps
from hotlap.lab.trial import Lab
from hotlap.trace.costs import StepCosts

_LEAST_SILENCE_S = 60.0
_SLOWER = 20.0
"""How many times longer a step may take in which each operator is looked at in Python."""


def count_step(lab: Lab, *, seconds: float, set_up_s: float | None = None) -> StepCosts:
    """Count one step in a process of its own, whose results nobody keeps.

    Args:
        lab: where the trial is held.
        seconds: one step is enough if it takes longer.
        set_up_s: within which the first step must be taken; a minute and more if None.

    Raises:
        TrialError: the process crashed, hung, or ended before two steps.
    """
    return lab.retry_if_address_in_use(
        lambda: _count(lab, seconds, set_up_s or first_steps.start_up_s(seconds))
    )


def _count(lab: Lab, seconds: float, set_up_s: float) -> StepCosts:
    folder = Path(tempfile.mkdtemp(prefix="count-", dir=lab.exchange))
    trial = lab.start("count", None, folder=str(folder), seconds=seconds)

    def silence_s(step_s: float) -> float:
        return seconds + max(_LEAST_SILENCE_S, _SLOWER * step_s)

    try:
        message = first_steps.report_of(trial, set_up_s, silence_s)
        if message.get("costs") is None:
            raise TrialError("the run ended before a second step", reason="ended_early")
        return StepCosts.from_json(message["costs"])
    finally:
        trial.kill()
        shutil.rmtree(folder)
