"""The page of a run: its curves, and what `run.json` says of task, plan, host and code."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.curves import Curve
from hotlap.report.page.history import (
    NOT_FINITE,
    curve_of,
    extent_of,
    in_mib,
    is_constant,
    last_words,
    names_of,
    values_of,
)
from hotlap.report.page.kept import answers_of_kept, sections_of_kept
from hotlap.report.page.training import chart_of
from hotlap.report.page.view import (
    Block,
    Code,
    Document,
    Fact,
    Lines,
    Page,
    Section,
    Table,
    Text,
    list_of,
    part_of,
)
from hotlap.track.run_file import MEASURED

_MANY = 12
"""Rows from which on a table is folded."""
_STATES = {
    "running": "is running, by what its file says",
    "finished": "finished",
    "stopped": "was stopped, and can be resumed",
    "failed": "failed",
    "killed": "was killed",
}


def page_of_run(document: Document) -> Page:
    """Return the page of a run's folder."""
    sections = [
        Section("What was learned", _learned(document)),
        Section("Speed and memory", _speed(document)),
        Section("The machine meanwhile", _system(document)),
        *sections_of_kept(document),
        section_of_task(document),
        section_of_code(document),
    ]
    return Page(
        "A run",
        str(document.get("folder")),
        _answer(document),
        _facts(document),
        [section for section in sections if section.blocks],
    )


def _answer(document: Document) -> str:
    info, (steps, seconds) = part_of(document, "info"), extent_of(document)
    if info.get("state") == MEASURED:
        return " ".join(["Nothing was trained here yet.", *answers_of_kept(document)])
    state = _STATES.get(str(info.get("state")), "left these records")
    words = f"The run {state}: {wording.number(steps)} steps in {wording.seconds(seconds)}"
    if times := len(list_of(info, "resumed")):
        words += f", resumed {'once' if times == 1 else f'{times} times'}, time in between included"
    words += _loss_in_words(part_of(part_of(document, "curves"), "step/loss"))
    if info.get("error"):
        words += f". {info['error']}"
    return wording.sentence(words)


def _loss_in_words(found: Document) -> str:
    """Return where the loss began and ended, and where it was not finite; empty without one."""
    points = list(zip(list_of(found, "steps"), list_of(found, "values"), strict=False))
    known = [place for place, (_, value) in enumerate(points) if wording.is_number(value)]
    if not points:
        return ""
    if not known:
        return f"; the training loss was {NOT_FINITE} from step {points[0][0]:,} on"
    ends = [wording.number(points[place][1]) for place in (known[0], known[-1])]
    words = f"; the training loss went from {ends[0]} to {ends[1]}"
    lost = [step for step, value in points if not wording.is_number(value)]
    if not lost:
        return words
    words += f", and was {NOT_FINITE}"
    if known[-1] + 1 < len(points):
        to_the_end = f"from step {points[known[-1] + 1][0]:,} on"
        if len(lost) == len(points) - known[-1] - 1:
            return f"{words} {to_the_end}"
        of = f"{len(lost):,} of the {len(points):,} recorded steps"
        return f"{words} at {of}: first at step {lost[0]:,}, and {to_the_end}"
    steps = "1 step" if len(lost) == 1 else f"{len(lost):,} steps"
    first = f"step {lost[0]:,}" if len(lost) == 1 else f"first at step {lost[0]:,}"
    return f"{words} in {steps} before the end: {first}"


def _facts(document: Document) -> list[Fact]:
    info, (steps, seconds) = part_of(document, "info"), extent_of(document)
    facts = []
    if steps:
        facts.append(Fact("steps", wording.number(steps), wording.seconds(seconds)))
    if info.get("state"):
        facts.append(Fact("state", str(info["state"]), str(info.get("began") or "")))
    for kind, words in (("epoch", "training"), ("evaluation", "held-out")):
        for name in names_of([document], kind)[:6]:
            if kind == "evaluation" or name in ("loss", "samples_per_s"):
                value = last_words(document, f"{kind}/{name}")
                shown = "samples/s" if name == "samples_per_s" else f"{words} {name}"
                facts.append(
                    Fact(shown, value, "the last epoch" if kind == "epoch" else "at the end")
                )
    return facts


def _learned(document: Document) -> list[Block]:
    """Return the loss of steps, epochs and evaluations over each other, and other metrics."""
    curves = part_of(document, "curves")
    groups: dict[str, list[Curve]] = {}
    for kind, words, style in (
        ("step", "each step", 0),
        ("epoch", "mean of an epoch", 2),
        ("evaluation", "held out", 1),
    ):
        for name in names_of([document], kind):
            if kind == "evaluation" or name == "loss":
                curve = curve_of(curves[f"{kind}/{name}"], f"{name}, {words}", style=style)
                groups.setdefault(name, []).append(curve)
    found: list[Block] = []
    for name, drawn in groups.items():
        found += chart_of(drawn, "step", name, f"over the steps of the run: {name}")
    return found


def _speed(document: Document) -> list[Block]:
    """Return what else was recorded of steps and epochs, such as samples per second."""
    found = _charts(document, "step", "each step", skips=("loss",))
    return [*found, *_charts(document, "epoch", "each epoch", skips=("loss",))]


def _system(document: Document) -> list[Block]:
    return _charts(document, "system", "the machine meanwhile", by_time=True)


def _charts(
    document: Document,
    kind: str,
    words: str,
    *,
    skips: Sequence[str] = (),
    by_time: bool = False,
) -> list[Block]:
    curves = part_of(document, "curves")
    found: list[Block] = []
    constant = []
    for name in [each for each in names_of([document], kind) if each not in skips]:
        recorded = curves[f"{kind}/{name}"]
        if is_constant(recorded):
            constant.append((name, wording.number(values_of(recorded)[-1])))
            continue
        recorded, shown = in_mib(recorded, name)
        curve = curve_of(recorded, shown, by_time=by_time, style=4 if by_time else 2)
        x_name = "seconds since the run began" if by_time else "step"
        # Their numbers are in the file: a page of all of them would be long.
        found += chart_of([curve], x_name, shown, f"{words}: {shown}")[:1]
    if constant:
        found.append(Table((f"{words}, always", "value"), constant))
    return found


def section_of_task(document: Document) -> Section:
    """Return what was trained, under which plan, and where."""
    info = part_of(document, "info")
    rows = [row for key, words in _PARTS for row in _in_words(info.get(key), words)]
    summary = f"All {len(rows)} facts" if len(rows) > _MANY else ""
    blocks: list[Block] = [Table(("what", "value"), rows, summary)] if rows else []
    plan = info.get("plan")
    if isinstance(plan, Mapping):
        blocks.insert(0, Text(f"Plan: {wording.plan(plan)}."))
    if info.get("unreadable"):
        blocks.append(Text("`run.json` could not be read: it is torn, or not JSON."))
    if document.get("unreadable"):
        count = wording.number(document["unreadable"])
        blocks.append(Text(f"{count} lines of `metrics.jsonl` hold no record, and were ignored."))
    return Section("Task, plan and host", blocks)


_PARTS = (("task", ""), ("host", ""), ("versions", "version of "), ("code", "code: "))


def _in_words(part: Any, prefix: str) -> list[tuple[str, str]]:
    if not isinstance(part, Mapping):
        return []
    return [
        (f"{prefix}{key}", value_in_words(value))
        for key, value in part.items()
        if value not in (None, "", [], {})
    ]


def value_in_words(value: Any) -> str:
    """Return a value of a run's file in words, whatever it is."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value_in_words(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(value_in_words, value))
    return wording.number(value) if isinstance(value, int | float) else str(value)


def section_of_code(document: Document) -> Section:
    """Return how to run it again."""
    info = part_of(document, "info")
    command, code = list_of(info, "command"), part_of(info, "code")
    blocks: list[Block] = []
    if command:
        blocks.append(Code(shlex.join(map(str, command))))
    if code.get("commit"):
        dirty = ", with changes that were not committed" if code.get("dirty") else ""
        blocks.append(Lines([f"The code was at commit {code['commit']}{dirty}."]))
    for each in list_of(info, "resumed"):
        blocks.append(Text(f"Resumed from step {each.get('step')} at {each.get('at')}."))
    return Section("How to reproduce it", blocks)
