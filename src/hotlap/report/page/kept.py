"""What a run's folder keeps beside its records: the sections of its diagnosis, tuning and so on."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hotlap.report.page import wording
from hotlap.report.page.diagnosis import answer_of_diagnosis, sections_of_diagnosis
from hotlap.report.page.machine import made_by
from hotlap.report.page.memory import answer_of_memory, sections_of_memory
from hotlap.report.page.tuning import answer_of_tuning, sections_of_tuning
from hotlap.report.page.two_plans import answer_of_compared, sections_of_compared
from hotlap.report.page.view import Block, Code, Document, Section, Table, Text, part_of
from hotlap.track.kept_documents import side_by_side


class _Kind(NamedTuple):
    title: str
    answer: Callable[[Document], str]
    sections: Callable[[Document], list[Section]]


_KINDS = {
    "diagnosis": _Kind("Why it is slow", answer_of_diagnosis, sections_of_diagnosis),
    "memory": _Kind("How much memory it takes", answer_of_memory, sections_of_memory),
    "tuning": _Kind("What makes it faster", answer_of_tuning, sections_of_tuning),
    "verdict": _Kind("Whether it learns the same", answer_of_compared, sections_of_compared),
}


def sections_of_kept(document: Document) -> Iterator[Section]:
    """Give the sections of everything that was found out about a run, each under its answer."""
    for kind, what in _KINDS.items():
        found = part_of(part_of(document, "findings"), kind)
        if not found:
            continue
        if found.get("unreadable"):
            yield Section(what.title, [Text(str(found["unreadable"]))])
            continue
        made = made_by(found)
        blocks: list[Block] = [Text(what.answer(found))]
        if made.get("command"):
            blocks += [Text(f"Measured on {made.get('time')}, by:"), Code(str(made["command"]))]
        yield Section(what.title, blocks)
        yield from what.sections(found)


def answers_of_kept(document: Document) -> list[str]:
    """Return the answer of everything that was found out, in its order."""
    kept = part_of(document, "findings")
    return [
        what.answer(part_of(kept, kind))
        for kind, what in _KINDS.items()
        if part_of(kept, kind) and not part_of(kept, kind).get("unreadable")
    ]


def section_of_both(runs: list[Document], names: list[str]) -> Section:
    """Return the figures of what the folders of two runs keep, side by side."""
    first, second = (part_of(run, "findings") for run in runs)
    rows = [
        (f"{kind}: {name.replace('_', ' ')}", *(_value(name, each) for each in values))
        for kind, name, *values in side_by_side(first, second)
    ]
    return Section("What was found out", [Table(("what", *names), rows)] if rows else [])


def _value(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return wording.size(value)
    if name.endswith("_ms"):
        return wording.ms(value)
    return wording.number(value) if wording.is_number(value) else str(value)
