"""The trade-off of a search with several objectives: the trials that no other one beats."""

from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.curves import Curve, draw_curves
from hotlap.report.page.view import (
    Block,
    Chart,
    Code,
    Document,
    Section,
    Table,
    Text,
    list_of,
    part_of,
)

_LEAD = "None of these is better than another in all objectives: which one is best is your choice."


def objectives_of(document: Document) -> list[tuple[str, bool]]:
    """Return name and direction of all objectives: True if more is better."""
    spec = part_of(document, "search")
    found = []
    for words in [spec.get("objective"), *list_of(spec, "more")]:
        direction, _, name = str(words).partition(":")
        found.append((name or str(words), direction == "max"))
    return found


def section_of_front(document: Document) -> Section:
    """Return the front as charts and a table, with what trains each of its trials."""
    front, objectives = list_of(document, "front"), objectives_of(document)
    if not front:
        return Section("The trade-off", [])
    names = [name for name, _ in objectives]
    blocks: list[Block] = [_chart(document, names[0], other) for other in names[1:]]
    parameters = {t.get("number"): part_of(t, "parameters") for t in list_of(document, "trials")}
    columns = list(dict.fromkeys(key for each in parameters.values() for key in each))
    rows = [
        (
            str(each.get("number")),
            *(wording.number(part_of(each, "values").get(name)) for name in names),
            *(_words(parameters.get(each.get("number"), {}).get(name)) for name in columns),
        )
        for each in front
    ]
    blocks.append(Table(("trial", *names, *columns), rows))
    compared = [row for each in front for row in _compared(each)]
    if compared:
        head = ("trial", "objective", "against the recipe's own", "by", "90 % interval")
        blocks.append(Table(head, compared))
    commands = [str(each["command"]) for each in front if each.get("command")]
    if commands:
        blocks += [Text("These train them:"), Code("\n".join(commands))]
    return Section("The trade-off", blocks, _LEAD)


def _words(value: Any) -> str:
    if isinstance(value, int | float):
        return wording.number(value)
    return "-" if value is None else str(value)


def _compared(each: Document) -> list[tuple[str, ...]]:
    return [
        (
            str(each.get("number")),
            str(name),
            str(found["verdict"]),
            wording.bound(found["gain"]),
            f"{wording.bound(found['low'])} to {wording.bound(found['high'])}",
        )
        for name, found in part_of(each, "comparisons").items()
        if found is not None
    ]


def _chart(document: Document, first: str, other: str) -> Chart:
    """Return the trials that were trained to the end over two objectives, the front as a line."""
    numbers = {each.get("number") for each in list_of(document, "front")}
    rungs = list_of(part_of(document, "search"), "rungs")
    points = [
        (values[other], values[first], trial.get("number") in numbers)
        for trial in list_of(document, "trials")
        if str(rungs[-1] if rungs else "") in part_of(trial, "rungs")
        and not trial.get("is_too_large")
        for values in [part_of(trial, "values")]
        if wording.is_number(values.get(first)) and wording.is_number(values.get(other))
    ]
    on_it = sorted((x, y) for x, y, is_on_it in points if is_on_it)
    off_it = [(x, y) for x, y, is_on_it in points if not is_on_it]
    curves = [Curve("not beaten by any other", [x for x, _ in on_it], [y for _, y in on_it])]
    if off_it:
        xs, ys = [x for x, _ in off_it], [y for _, y in off_it]
        curves.append(Curve("beaten in everything by one", xs, ys, style=1, has_line=False))
    title = f"{first} over {other} of the trials that were trained to the end"
    return Chart.of(
        lambda width: draw_curves(curves, width, other, first, title), wording.sentence(title)
    )
