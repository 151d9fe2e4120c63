"""`repeat_steps`: kept steps of a script, repeated by the script itself in another process."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from hotlap.errors import TrialError
from hotlap.lab.recipe_repetition import DTYPES, TIMEOUT_S, last_line, why_not_repeated
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.lab.trial import Lab
from hotlap.lab.trial_report import run_to_report
from hotlap.trial.repetition_ways import EXACT, ways_of

_LONG = 10
"""Times the updates of most steps, from which on a step is long."""
_MOST_HIDDEN = 0.5
"""Of all updates, those that may be in long steps."""


def problem_of_samples(record: Mapping[str, Any], asked: int) -> str:
    """Return why the steps that a run has kept say nothing of the others; empty if they do.

    Args:
        record: of the run.
        asked: how many steps it was to keep.
    """
    samples = record["samples"]
    if record["not_sampled"]:
        return record["not_sampled"]
    if len(samples) < asked:
        return f"only {len(samples)} of {asked} sampled steps could be recorded"
    total, begins = len(record.get("weights") or ()), record.get("steps_at") or [0]
    lengths = [end - begin for begin, end in pairwise([*begins, total])]
    hidden = sum(length for length in lengths if length > _LONG * median(lengths))
    if hidden > _MOST_HIDDEN * total:
        return (
            f"{hidden} of the {total} updates are in a few long steps, which are hardly sampled: "
            "the script's optimizers step one after another, each for many steps"
        )
    return ""


def repeat_steps(
    lab: Lab,
    samples: Sequence[Mapping[str, Any]],
    *,
    evaluations: Sequence[str],
    rounding: bool,
    memory_format: str,
    drawn: str,
) -> SampledSteps:
    """Repeat kept steps without a plan, in float64 where the script can compute in it.

    Args:
        lab: where the trials are held.
        samples: of each step `file`, the `hyperparameters` of its updates, and `draws_itself`.
        evaluations: files with what was evaluated, to be repeated as well.
        rounding: True if a plan may round as float32 does; else as a narrower format does.
        memory_format: the layout that the plan gives the weights, "" for none.
        drawn: how the steps were chosen.
    """
    ways = {sample["draws_itself"] for sample in samples}
    if len(ways) > 1:
        words = "the batches of some steps came from a DataLoader, those of others did not"
        return SampledSteps(problem=words)
    repeat = _in_own_places if True in ways else _in_place_of_others
    options = {
        "samples": samples,
        "evaluations": evaluations,
        "rounding": rounding,
        "memory_format": memory_format,
    }
    fallback = ""
    for dtype in DTYPES:
        try:
            report = repeat(lab, dtype, options)
        except TrialError as error:
            fallback = why_not_repeated(dtype, last_line(error))
            continue
        if report["problem"]:
            return SampledSteps(problem=why_not_repeated(dtype, report["problem"]))
        if report["whole"] == len(samples):
            return SampledSteps(
                report["results"],
                fallback=fallback,
                drawn=drawn,
                evaluations=report["evaluations"],
            )
        end = report["raised"] or "the script ended"
        fallback = why_not_repeated(dtype, f"{report['whole']} of {len(samples)} were, then {end}")
    return SampledSteps(problem=fallback)


def _in_place_of_others(lab: Lab, dtype: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat steps whose batches can be handed to the script."""
    return run_to_report(lab, timeout_s=TIMEOUT_S, role="reference", dtype=dtype, **options)


def _in_own_places(lab: Lab, dtype: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat steps that the script draws itself, see `hotlap.attach.roles.own_place`."""
    report: dict[str, Any] = {}
    for way in ways_of(options["memory_format"]):
        given = options if way == EXACT else {**options, "evaluations": []}
        report = run_to_report(
            lab,
            timeout_s=TIMEOUT_S,
            role="own_place",
            dtype=dtype,
            repeated=str(lab.exchange),
            way=way,
            **given,
        )
        if report["whole"] < len(options["samples"]):
            break
    return report
