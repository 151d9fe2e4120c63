"""Why a plan may be believed to learn the same: the checks of its verdict, and the losses."""

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.curves import Curve, draw_curves, is_drawable
from hotlap.report.page.view import Block, Chart, Document, Lines, Table, Text, list_of, part_of

MEANING = {
    "exact": "bit for bit what the plain run learns",
    "rounding": "what the plain run learns, up to rounding",
    "statistical": "no worse than what the plain run learns, within a margin that was set before",
    "unproven": "not proven: a check could not be made",
    "changed": "something else than the plain run",
}
"""Tier -> what is learned, in words."""
_MARKS = {
    "passed": "✓ passed",
    "failed": "✗ failed",
    "partial": "◐ in part",
    "not_made": "○ not made",
}
_BANDS = {
    "seeds": "plain run, from its lowest to its highest seed",
    "batches": "plain run, two standard errors of each mean",
}


def blocks_of_verdict(verdict: Document) -> list[Block]:
    """Return the checks of a verdict, what it covers, and what it says nothing of."""
    blocks: list[Block] = []
    tier, steps = verdict.get("tier"), verdict.get("horizon_steps")
    what = MEANING.get(str(tier), str(tier))
    checks = list_of(verdict, "checks")
    states = [check.get("state") for check in checks]
    passed = f"{states.count('passed')} of {len(states)} checks passed"
    for state, label in (("partial", "in part"), ("not_made", "not made"), ("failed", "failed")):
        passed += f", {states.count(state)} {label}" if state in states else ""
    words = f"Verdict: {tier} over {wording.number(steps)} steps. What is learned is {what}."
    blocks.append(Text(f"{words} {passed}." if checks else words))
    blocks += _curves(part_of(verdict, "curves"))
    if checks:
        rows = [
            (
                str(check.get("name")),
                _MARKS.get(str(check.get("state")), str(check.get("state"))),
                str(check.get("evidence")),
            )
            for check in checks
        ]
        blocks.append(Table(("check", "state", "evidence"), rows))
    elif verdict.get("evidence"):
        blocks.append(Text(wording.sentence(verdict["evidence"])))
    covered = [
        (name, wording.number(value))
        for name, value in part_of(verdict, "covers").items()
        if value is not None
    ]
    if covered:
        blocks.append(Table(("covers", "how much"), covered, "What the verdict covers"))
    limits = [(str(each.get("of")), _smallest(each)) for each in list_of(verdict, "limits")]
    if limits:
        words = "The smallest changes that would have been detected"
        blocks.append(Table(("change of", "smallest"), limits, words))
    open_ = list_of(verdict, "not_checked")
    if open_:
        blocks += [Text("Not checked:"), Lines([str(line) for line in open_])]
    return blocks


def _smallest(limit: Mapping[str, Any]) -> str:
    smallest = limit.get("smallest")
    return "any bit" if smallest == 0 else f"{wording.number(smallest)} {limit.get('unit', '')}"


def _curves(found: Document) -> list[Block]:
    """Return the losses of both runs over the steps that the proof has followed."""
    steps = list_of(found, "steps")
    if not steps:
        return []
    band = _BANDS.get(str(found.get("band")), str(found.get("band") or ""))
    plain = Curve(
        "plain run",
        steps,
        list_of(found, "plain"),
        list_of(found, "low"),
        list_of(found, "high"),
        band if list_of(found, "low") else "",
    )
    curves = [plain, Curve("under the plan", steps, list_of(found, "plan"))]
    drawable = [curve for curve in curves if is_drawable(curve)]
    if not drawable:
        return []
    title = "Training loss of the plain run and of the run under the plan"
    caption = (
        f"Training loss over the first {wording.number(steps[-1])} steps, both runs on the same "
        f"batches; each point is a mean of up to {wording.number(found.get('each'))} losses. Where "
        "the two lie on each other, the plan learns what the plain run learns."
    )
    return [
        Chart.of(lambda width: draw_curves(drawable, width, "step", "loss", title), caption),
        numbers_of(drawable, "step"),
    ]


def numbers_of(curves: Sequence[Curve], x_name: str) -> Table:
    """Return the numbers behind curves, folded; curves may have points at different places."""
    places = sorted({x for curve in curves for x in curve.xs})
    columns = [dict(zip(curve.xs, curve.ys, strict=False)) for curve in curves]
    rows = [
        (
            wording.number(place),
            *(
                "" if column.get(place) is None else wording.number(column[place])
                for column in columns
            ),
        )
        for place in places
    ]
    return Table((x_name, *(curve.name for curve in curves)), rows, "The numbers of these curves")
