"""The HTML page of a tuning: what was slow, what changed, and why to believe it."""

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.bars import draw_stacks
from hotlap.report.page.intervals import Interval, draw_intervals
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.phases import blocks_of_phases
from hotlap.report.page.verdict import MEANING, blocks_of_verdict
from hotlap.report.page.view import (
    Block,
    Card,
    Chart,
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
from hotlap.report.tuning_words import STATES, WITHOUT_PLAN

_LONG = 120
"""Letters from which on a reason is a list of its own."""


def page_of_tuning(document: Document) -> Page:
    """Return the page of what `hotlap tune --json` prints."""
    sections = [*sections_of_tuning(document), section_of_machine(document)]
    sections.append(section_of_command(document, _use(document)))
    return Page(
        "What makes it faster?",
        str(document.get("script")),
        answer_of_tuning(document),
        facts_of_tuning(document),
        sections,
    )


def _use(document: Document) -> str:
    return str(document.get("use") or "")


def is_gain(document: Document) -> bool:
    """True if a tuning found a plan that is faster and proven."""
    return document.get("outcome") == "gain"


def answer_of_tuning(document: Document) -> str:
    """Return what was found, in two sentences."""
    if not is_gain(document):
        words = WITHOUT_PLAN.get(str(document.get("outcome")), str(document.get("outcome")))
        reason = str(document.get("reason") or "")
        return wording.ended(words if len(reason) > _LONG else f"{words}: {reason}")
    verdict = part_of(document, "verdict")
    learns = MEANING.get(str(verdict.get("tier")), "")
    ratio = part_of(document, "speedup")
    return (
        f"A step is {ratio['median']:.2f} times faster, and the script is not edited. What it "
        f"learns is {learns}: checked over {wording.number(verdict.get('horizon_steps'))} steps."
    )


def _step_ms(document: Document) -> tuple[float | None, float | None]:
    """Return what a step takes, plain and under the plan, whose ratio is the speed-up."""
    pair = list_of(document, "pair_ms")
    if len(pair) == 2:
        return pair[0], pair[1]
    base, best = (part_of(document, key).get("median") for key in ("baseline_ms", "best_ms"))
    return base, best


def facts_of_tuning(document: Document) -> list[Fact]:
    """Return the figures at the top."""
    floor = Fact(
        "identical runs differ by up to",
        wording.percent(document.get("noise_floor")),
        "a gain must lie above that",
    )
    base, best = _step_ms(document)
    if not is_gain(document):
        return [Fact("a plain step", wording.ms(base), "median"), floor]
    ratio, whole = part_of(document, "speedup"), part_of(document, "whole_run")
    verdict = part_of(document, "verdict")
    facts = [
        Fact(
            "faster, steady",
            f"{ratio['median']:.2f}x",
            f"interval {ratio['low']:.2f} to {ratio['high']:.2f}, {ratio['pairs']} paired turns",
        ),
        Fact(
            "a step, plain → plan",
            f"{base or 0.0:.2f} → {best or 0.0:.2f} ms",
            "in fresh processes, of the turns with the median speed-up",
        ),
    ]
    if wording.is_number(whole.get("baseline_s")) and wording.is_number(whole.get("best_s")):
        facts.append(
            Fact(
                "the whole run, predicted",
                f"{wording.seconds(whole['baseline_s'])} → {wording.seconds(whole['best_s'])}",
                f"{wording.number(whole.get('planned_steps'))} steps, with set-up and evaluation",
            )
        )
    steps = f"over {wording.number(verdict.get('horizon_steps'))} steps"
    return [*facts, Fact("verdict", str(verdict.get("tier")), steps), floor]


def sections_of_tuning(document: Document) -> list[Section]:
    """Return the sections that a tuning has wherever it is shown."""
    sections = [_slow(document)]
    reason = str(document.get("reason") or "")
    if len(reason) > _LONG:
        parts = [wording.ended(part) for part in reason.split("; ")]
        sections.insert(0, Section("Why", [Lines(parts)]))
    if is_gain(document):
        sections += [_changed(document), _believed(document)]
    sections += [_trials(document), _techniques(document), _open(document)]
    return [section for section in sections if section.blocks]


def _slow(document: Document) -> Section:
    before, after = part_of(document, "phases"), part_of(document, "best_phases")
    names = ("before: the plain run", "after: under the plan")
    if before:
        caption = "A mean step by phase, each run watched by itself."
        if after:
            caption += (
                " The speed-up above is measured apart from this, with both in alternating turns."
            )
        if after and not document.get("best_phases_are_steady"):
            caption += (
                " Under the plan only the first epoch was watched: what later ones have in memory "
                "is still read in it."
            )
        blocks = blocks_of_phases(before, after, names, caption)
        return Section(
            "What was slow, and what is left of it" if after else "What was slow", blocks
        )
    base, best = _step_ms(document)
    rows = {"all": base or 0.0}
    others = {"all": best or 0.0} if is_gain(document) else {}
    caption = "In the last race, in the turns with the median speed-up."
    return Section("What a step takes", blocks_of_phases(rows, others, names, caption))


def _changed(document: Document) -> Section:
    states = {row["name"]: row for row in list_of(document, "techniques")}
    cards: list[Block] = [
        Card(
            "+",
            wording.plan({name: options}),
            parts=[
                (words, wording.ended(states[name][key]))
                for key, words in (("state", "state"), ("why", "measured"))
                if states.get(name, {}).get(key)
            ],
            tone="good",
        )
        for name, options in part_of(document, "plan").items()
    ]
    cards.insert(0, _before_and_after(document))
    lead = (
        f"Plan {document.get('plan_hash')}. The script is not edited: the plan is applied when it "
        "runs. `hotlap explain NAME` says what each technique does."
    )
    return Section("What changed", cards, lead)


def _before_and_after(document: Document) -> Chart:
    base, best = (ms or 0.0 for ms in _step_ms(document))
    rows = [
        (f"plain run: {wording.ms(base)}", {"step": base}),
        (f"under the plan: {wording.ms(best)}", {"step": best}),
    ]
    title = "; ".join(words for words, _ in rows)
    caption = (
        "A step in the last race, in which both ran in turns: in those with the median speed-up."
    )
    return Chart.of(lambda width: draw_stacks(rows, width, "ms per step", title), caption)


def _believed(document: Document) -> Section:
    floor = document.get("noise_floor")
    claimed = part_of(document, "speedup")
    measured = [
        ("switched on and off in one process", part_of(document, "speedup_live")),
        ("in fresh processes, in turns", part_of(document, "speedup_fresh")),
    ]
    if claimed not in [ratio for _, ratio in measured]:
        measured.append(("in turns", claimed))
    rows = [
        _interval(f"{name} (claimed)" if ratio == claimed else name, ratio, floor)
        for name, ratio in measured
        if _is_drawable(ratio)
    ]
    blocks: list[Block] = []
    if rows:
        title = "How many times faster the plan is, with its interval"
        caption = "Times faster than the plain run: medians of paired turns and their intervals."
        if wording.is_number(document.get("speedup_by_means")):
            caption += (
                " By the means of all turns, which slow single steps count in: "
                f"{document['speedup_by_means']:.2f}x."
            )
        blocks.append(_forest(rows, floor, title, caption))
    blocks += blocks_of_verdict(part_of(document, "verdict"))
    ladder = [
        (
            str(each.get("tier")),
            wording.times(part_of(each, "speedup")),
            wording.plan(each.get("plan")),
            wording.percent(each.get("noise_floor")),
        )
        for each in list_of(document, "ladder")
    ]
    if ladder:
        head = ("tier", "faster", "plan", "noise floor")
        blocks += [Text("The fastest proven plan of each tier:"), Table(head, ladder)]
    if document.get("why_chosen"):
        blocks.append(Text(f"{document['why_chosen']}."))
    return Section("Why to believe it", blocks)


def _interval(name: str, ratio: Mapping[str, Any], floor: Any) -> Interval:
    apart = floor if wording.is_number(floor) else 0.0
    return Interval(
        name,
        ratio["median"],
        ratio["low"],
        ratio["high"],
        wording.times(ratio),
        ratio["low"] > 1 + apart,
    )


def _is_drawable(ratio: Mapping[str, Any] | None) -> bool:
    return bool(ratio) and all(
        wording.is_number((ratio or {}).get(name)) for name in ("median", "low", "high")
    )


def _forest(rows: Sequence[Interval], floor: Any, title: str, caption: str) -> Chart:
    noise = floor if wording.is_number(floor) else None
    unit = "times faster than the plain run"
    return Chart.of(
        lambda width: draw_intervals(rows, width, unit, title, zero=1.0, noise=noise), caption
    )


def _trials(document: Document) -> Section:
    trials = list_of(document, "trials")
    if not trials:
        return Section("Every trial", [])
    drawn = [
        _interval(
            f"{wording.plan(row.get('plan'))}, {_race(row)}",
            row["speedup"],
            document.get("noise_floor"),
        )
        for row in trials
        if _is_drawable(row.get("speedup"))
    ]
    title = "Every trial: how many times faster than the plain run"
    caption = (
        "Each plan against the plain run, in alternating turns; a plan may be in several races."
    )
    chart = [_forest(drawn, document.get("noise_floor"), title, caption)] if drawn else []
    rows = [
        (
            wording.plan(row.get("plan")),
            _race(row),
            wording.times(row.get("speedup")),
            wording.ms(part_of(row, "ms").get("median")),
            "" if row.get("by_means") is None else f"{row['by_means']:.2f}x",
            "" if row.get("peak_bytes") is None else wording.size(row["peak_bytes"]),
            "; ".join(
                filter(
                    None,
                    [
                        "" if row.get("took_effect", True) else "took no effect",
                        str(row.get("note") or ""),
                    ],
                )
            ),
        )
        for row in trials
    ]
    head = ("plan", "where", "faster", "a step", "by means", "peak memory", "note")
    return Section("Every trial", [*chart, Table(head, rows, f"All {len(rows)} trials as a table")])


def _race(row: Mapping[str, Any]) -> str:
    race = row.get("race")
    return "in one process" if race == 0 else f"fresh processes, race {race}"


def _techniques(document: Document) -> Section:
    rows = [
        (
            str(row.get("name")),
            STATES.get(str(row.get("state")), str(row.get("state"))),
            wording.ended(row.get("why")),
        )
        for row in list_of(document, "techniques")
    ]
    # What cannot be used here is most of the list, and little of the answer.
    refused = [row for row in rows if row[1] == "refused"]
    others = [row for row in rows if row[1] != "refused"]
    head = ("technique", "state", "why")
    blocks: list[Block] = [Table(head, others)] if others else []
    if refused:
        words = f"{len(refused)} techniques that cannot be used here, with the reasons"
        blocks.append(Table(head, refused, words if others else ""))
    return Section("All techniques, and what became of each", blocks)


def _open(document: Document) -> Section:
    blocks: list[Block] = []
    hints = [wording.ended(row.get("why")) for row in list_of(document, "hints")]
    if hints:
        blocks += [Text("What a diagnosis had measured before:"), Lines(hints)]
    for words, key in (
        ("Not tried:", "not_tried"),
        ("Not reached within the budget:", "not_reached"),
        ("Trials could still have changed:", "unprotected"),
    ):
        lines = [str(line) for line in list_of(document, key)]
        if lines:
            blocks += [Text(words), Lines(lines)]
    whole = part_of(document, "whole_run")
    if whole.get("baseline_covers"):
        why = f"The prediction of the whole run rests on: {whole['baseline_covers']}"
        blocks.append(Text(wording.sentence(f"{why}; under the plan: {whole.get('best_covers')}")))
    if whole.get("about"):
        blocks.append(Text(wording.sentence(f"It is made of: {whole['about']}")))
    memory = part_of(document, "memory")
    if memory.get("plain_peak_bytes"):
        limit = memory.get("limit_bytes")
        words = f"The plain run held {wording.size(memory['plain_peak_bytes'])} at its peak"
        words += f"; {wording.size(limit)} were allowed" if limit else ""
        blocks.append(Text(wording.sentence(words)))
    if wording.is_number(document.get("seconds")):
        blocks.append(Text(f"The tuning took {wording.seconds(document['seconds'])}."))
    return Section("What was not reached, and what this rests on", blocks)
