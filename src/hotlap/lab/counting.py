"""Runs a script in the role `count`, and returns what one of its steps computes."""

from hotlap.errors import TrialError
from hotlap.lab.observing import LEAST_START_UP_S
from hotlap.lab.trial import Lab
from hotlap.trace.costs import StepCosts

_LEAST_SILENCE_S = 60.0


def count_step(lab: Lab, *, seconds: float) -> StepCosts:
    """Count one step in a process of its own, whose results nobody keeps.

    Args:
        lab: where the trial is held.
        seconds: one step is enough if it takes longer.

    Raises:
        TrialError: the process crashed, hung, or ended before two steps.
    """
    return lab.retry_if_address_in_use(lambda: _count(lab, seconds))


def _count(lab: Lab, seconds: float) -> StepCosts:
    trial = lab.start("count", seconds=seconds)
    try:
        silence_s = max(LEAST_START_UP_S, seconds) + 2 * seconds
        while (message := trial.message(["step_time", "report"], silence_s))["kind"] != "report":
            # An operator is looked at in Python.
            silence_s = seconds + max(_LEAST_SILENCE_S, 20 * message["seconds"])
        if message.get("costs") is None:
            raise TrialError("the run ended before a second step", reason="ended_early")
        trial.check_exit()
        return StepCosts.from_json(message["costs"])
    finally:
        trial.kill()
