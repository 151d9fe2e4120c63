"""`run_to_report`: starts a trial, answers its messages, and returns the report of all ranks."""

from collections.abc import Callable, Mapping
from typing import Any

from hotlap.errors import TrialError
from hotlap.lab.rank_records import merge_ranks
from hotlap.lab.trial import Lab, Trial
from hotlap.plan import Plan
from hotlap.trial.protocol import Role

_RANK_S = 30.0
"""Seconds in which every rank reports, once the first has."""


def run_to_report(
    lab: Lab,
    plan: Plan | None = None,
    *,
    timeout_s: float,
    answers: Mapping[str, Callable[[Mapping[str, Any]], None]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run one trial to its report and return it.

    Args:
        lab: where the trial is held.
        plan: what is applied to it.
        timeout_s: how long each message may take.
        answers: kind of message -> what to do with it; then the trial is told to go on.
        options: what the role needs, and `role` itself.
    """
    role: Role = options.pop("role", "observe")
    return lab.retry_if_address_in_use(
        lambda: _run_once(lab, plan, role, timeout_s, answers or {}, options)
    )


def _run_once(
    lab: Lab,
    plan: Plan | None,
    role: Role,
    timeout_s: float,
    answers: Mapping[str, Callable[[Mapping[str, Any]], None]],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    trial = lab.start(role, plan, **options)
    try:
        while (message := trial.message(["report", *answers], timeout_s))["kind"] != "report":
            answers[message["kind"]](message)
            trial.send("go")
        if message["steps"] == 0:
            raise trial.exit_error()
        if trial.ranks.are_there and "record" in message:
            others = _other_ranks(trial, message["ranks"])
            message["record"] = merge_ranks(message["record"], others)
        trial.check_exit()
        return message
    finally:
        trial.kill()


def _other_ranks(trial: Trial, ranks: int) -> list[dict[str, Any]]:
    """Return the records of all ranks but the first, once the first has reported.

    Raises:
        TrialError: one of them does not come to its report.
    """
    while missing := sorted({*range(1, ranks)} - trial.ranks.followed.keys()):
        try:
            trial.message(["followed"], _RANK_S)
        except TrialError as error:
            words = f"rank {missing[0]} of {ranks} did not take as many steps as the first: {error}"
            raise TrialError(words, reason=error.reason, output=error.output) from error
    return [trial.ranks.followed[rank]["record"] for rank in sorted(trial.ranks.followed)]
