"""The phases of a step: as bars before and after, and over time."""

from collections.abc import Mapping, Sequence

from hotlap.report.page import wording
from hotlap.report.page.areas import draw_areas
from hotlap.report.page.bars import draw_stacks
from hotlap.report.page.view import Block, Chart, Document, Table, list_of, part_of

_MEANING = {
    "data": "waiting for the next batch",
    "forward": "the model and the loss",
    "backward": "the gradients",
    "optimizer": "the update of the weights",
    "other": "whatever else the loop does",
}


def blocks_of_phases(
    before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str], caption: str
) -> list[Block]:
    """Return the step as bars, and its phases as a table.

    Args:
        before: phase -> ms of a mean step.
        after: the same under a plan; empty if there is none.
        names: words for both.
        caption: what the bars show.
    """
    rows = [
        (f"{name}: {wording.ms(sum(phases.values()))}", phases)
        for name, phases in zip(names, (before, after), strict=False)
        if phases
    ]
    title = "; ".join(words for words, _ in rows)
    chart = Chart.of(lambda width: draw_stacks(rows, width, "ms per step", title), caption)
    return [chart, _table(before, after, names)]


def _table(before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str]) -> Table:
    total = sum(before.values()) or 1.0
    head = ["phase", "what it is", names[0], "share"]
    rows = [
        [name, _MEANING.get(name, ""), wording.ms(ms), wording.percent(ms / total)]
        for name, ms in before.items()
    ]
    if after:
        head.append(names[1])
        for row in rows:
            row.append(wording.ms(after.get(row[0])))
    return Table(head, rows)


def blocks_of_timeline(timeline: Document) -> list[Block]:
    """Return the phases over the steps that were observed, none if that was not kept."""
    steps, phases = list_of(timeline, "steps"), part_of(timeline, "phases")
    if len(steps) < 2 or not phases:
        return []
    borders = [place for place in list_of(timeline, "epochs") if steps[0] < place < steps[-1]]
    title = "Milliseconds of each step by phase"
    caption = (
        f"Each step from {wording.number(steps[0])} to {wording.number(steps[-1])}, in the order "
        "in which they were taken"
    )
    each = timeline.get("each")
    if wording.is_number(each) and each > 1:
        caption += f"; a column is the mean of up to {wording.number(each)} steps"
    caption += "." if not borders else ". Dashed lines are the beginnings of epochs."
    return [
        Chart.of(
            lambda width: draw_areas(
                steps, phases, width, "step", "ms per step", title, borders=borders
            ),
            caption,
        )
    ]
