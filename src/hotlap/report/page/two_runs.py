"""The page of two runs: what differs, and their curves over each other."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.history import curve_of, extent_of, last_words, names_of
from hotlap.report.page.kept import section_of_both
from hotlap.report.page.run import value_in_words
from hotlap.report.page.training import chart_of
from hotlap.report.page.view import (
    Block,
    Document,
    Fact,
    Page,
    Section,
    Table,
    Text,
    list_of,
    part_of,
)
from hotlap.track.comparing import PARTS, SAME, likeness

_KINDS = (
    ("step", "Each step"),
    ("epoch", "Each epoch"),
    ("evaluation", "Held out"),
    ("system", "The machine meanwhile"),
)


def page_of_comparison(document: Document) -> Page:
    """Return the page of two runs."""
    runs = list_of(document, "runs")
    folders = [str(run.get("folder")) for run in runs]
    names = _shortened(folders)
    sections = [_differences(runs, names), _last_values(runs, names), section_of_both(runs, names)]
    for kind, title in _KINDS:
        sections.append(Section(title, _charts(runs, names, kind)))
    return Page(
        "Two runs compared",
        " and ".join(folders),
        _answer(runs),
        _facts(runs, names),
        [section for section in sections if section.blocks],
    )


def _shortened(folders: list[str]) -> list[str]:
    """Return paths without the folders that all of them begin with: a legend holds few letters."""
    parts = [PurePath(folder).parts for folder in folders]
    while all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1:
        parts = [each[1:] for each in parts]
    return [str(PurePath(*each)) for each in parts]


def _answer(runs: list[Document]) -> str:
    differ = sorted({path.partition(".")[0] for path, *_ in _different(runs)})
    words = f"They differ in {', '.join(differ)}" if differ else "Their files name no difference"
    doubts = [f"{part}: {said}" for part, said in _alike(runs).items() if said != SAME]
    words += f" ({'; '.join(doubts)})" if doubts and not differ else ""
    losses = [_last_loss(run) for run in runs]
    if wording.NOTHING not in losses:
        words += f". The last training losses are {' and '.join(losses)}"
    return wording.sentence(words)


def _last_loss(run: Document) -> str:
    found = last_words(run, "epoch/loss")
    return last_words(run, "step/loss") if found == wording.NOTHING else found


def _facts(runs: list[Document], names: list[str]) -> list[Fact]:
    facts = []
    for run, name in zip(runs, names, strict=True):
        steps, seconds = extent_of(run)
        facts.append(Fact(name, f"{wording.number(steps)} steps", wording.seconds(seconds)))
    return facts


def _different(runs: list[Document]) -> list[tuple[str, str, str]]:
    flat = []
    for run in runs:
        info = part_of(run, "info")
        flat.append(dict(_flatten({key: info.get(key) for key in PARTS})))
    paths = dict.fromkeys([*flat[0], *flat[1]])
    rows = [
        (path, flat[0].get(path, "(not set)"), flat[1].get(path, "(not set)")) for path in paths
    ]
    return [row for row in rows if row[1] != row[2]]


def _alike(runs: list[Document]) -> dict[str, str]:
    """Return each part in which no difference is named -> how far that is known."""
    differ = {path.partition(".")[0] for path, *_ in _different(runs)}
    infos = [part_of(run, "info") for run in runs]
    found = {}
    for part in PARTS:
        if part not in differ:
            first, second = (part_of(info, part) if part in info else None for info in infos)
            found[part] = likeness(part, first, second)
    return found


def _flatten(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        rows = []
        for key, each in value.items():
            rows += _flatten(each, f"{path}.{key}" if path else str(key))
        return rows
    return [] if value in (None, {}) else [(path, value_in_words(value))]


def _differences(runs: list[Document], names: list[str]) -> Section:
    rows, alike = _different(runs), _alike(runs)
    blocks: list[Block] = [Table(("what", *names), rows)] if rows else []
    said = [
        f"{', '.join(part for part in alike if alike[part] == words)}: {words}"
        for words in dict.fromkeys(alike.values())
    ]
    blocks += [Text(wording.sentence(each)) for each in said]
    return Section("What differs", blocks)


def _last_values(runs: list[Document], names: list[str]) -> Section:
    rows = []
    for kind, _ in _KINDS[:3]:
        for name in names_of(runs, kind):
            values = [last_words(run, f"{kind}/{name}") for run in runs]
            rows.append((f"{kind}: {name}", *values))
    return Section("The last values", [Table(("what", *names), rows)] if rows else [])


def _charts(runs: list[Document], names: list[str], kind: str) -> list[Block]:
    found: list[Block] = []
    is_system = kind == "system"
    for value in names_of(runs, kind):
        curves = [
            curve_of(part_of(part_of(run, "curves"), f"{kind}/{value}"), name, by_time=is_system)
            for run, name in zip(runs, names, strict=True)
        ]
        x_unit = "seconds since the run began" if is_system else "step"
        blocks = chart_of(curves, x_unit, value, f"both runs over each other: {value}")
        found += blocks[:1] if is_system else blocks
    return found
