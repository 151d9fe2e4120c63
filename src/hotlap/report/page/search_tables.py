"""The tables of a search's page: every trial, and what was searched and how."""

from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.front import objectives_of
from hotlap.report.page.view import Document, Section, Table, list_of, part_of

_SCHEDULES = {
    "whole": "that of the whole run",
    "rung": "ends where trials are compared, longer after each promotion",
}


def value_text(value: Any) -> str:
    """Return the value of a parameter."""
    if value is None:
        return "-"
    return wording.number(value) if isinstance(value, int | float) else str(value)


def section_of_trials(document: Document) -> Section:
    """Return every trial as a table."""
    trials = list_of(document, "trials")
    names = [*dict.fromkeys(name for trial in trials for name in part_of(trial, "parameters"))]
    rungs = [str(rung) for rung in list_of(part_of(document, "search"), "rungs")]
    name, _ = objectives_of(document)[0]
    head = (
        "trial",
        *names,
        "state",
        *(f"{name} after {rung_text(part_of(document, 'search'), int(rung))}" for rung in rungs),
        "time",
        "memory",
        "why",
    )
    rows = [
        (
            str(trial.get("number")),
            *(value_text(part_of(trial, "parameters").get(each, "")) for each in names),
            _state_of(trial),
            *(_known(part_of(trial, "rungs").get(rung)) for rung in rungs),
            wording.seconds(trial.get("seconds")),
            wording.size(trial.get("memory_bytes")),
            str(trial.get("error") or ""),
        )
        for trial in trials
    ]
    # Wide tables open on demand: everything above says it shorter.
    summary = f"All {len(rows)} trials as a table"
    return Section("Every trial", [Table(head, rows, summary)] if rows else [])


def _state_of(trial: Document) -> str:
    # One that failed says why, however much memory it held.
    is_ruled_out = trial.get("state") == "done" and trial.get("is_too_large")
    return "too large" if is_ruled_out else str(trial.get("state"))


def _known(value: Any) -> str:
    return "" if value is None else wording.number(value)


def section_of_settings(document: Document) -> Section:
    """Return the space, and the settings of the search."""
    spec = part_of(document, "search")
    limit = spec.get("memory_bytes")
    space = [
        (str(name), ", ".join(f"{key} {_words(each)}" for key, each in part.items()))
        for name, part in part_of(spec, "space").items()
    ]
    rows = [
        ("method", str(spec.get("method"))),
        ("objective", ", ".join([str(spec.get("objective")), *map(str, list_of(spec, "more"))])),
        ("compared after", _compared_after(spec)),
        ("one of this many continues", wording.number(spec.get("reduction"))),
        ("memory limit", wording.size(limit) if wording.is_number(limit) else "none"),
        ("schedule of a trial", _SCHEDULES.get(str(spec.get("schedule") or "whole"), "")),
        ("seed of the search", str(spec.get("seed"))),
        ("plan of each trial", wording.plan(spec.get("plan"))),
    ]
    return Section(
        "What was searched, and how",
        [Table(("parameter", "space"), space), Table(("what", "value"), rows)],
    )


def rung_text(spec: Document, rung: int) -> str:
    """Return in words after how much of its run a trial is compared.

    Args:
        spec: settings of the search.
        rung: one of its steps.
    """
    if not spec.get("is_own_length"):
        return f"{wording.number(rung)} steps"
    share = rung / list_of(spec, "rungs")[-1]
    return "the whole run" if share == 1 else f"{share:.0%} of the run"


def _compared_after(spec: Document) -> str:
    steps = ", ".join(map(wording.number, list_of(spec, "rungs"))) + " steps"
    shares = " of the recipe's own configuration, others after the same shares of their steps"
    return steps + (shares if spec.get("is_own_length") else "")


def _words(value: Any) -> str:
    return ", ".join(map(value_text, value)) if isinstance(value, list) else value_text(value)
