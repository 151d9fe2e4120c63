"""The HTML page of a diagnosis: where a step's time goes, and what each cause costs."""

from collections.abc import Sequence

from hotlap.diagnosis.findings import UNDECIDED, in_words_of_most
from hotlap.report.page import wording
from hotlap.report.page.intervals import Interval, draw_intervals
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.phases import blocks_of_phases, blocks_of_timeline
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


def page_of_diagnosis(document: Document) -> Page:
    """Return the page of what `hotlap diagnose --json` prints."""
    sections = [*sections_of_diagnosis(document)]
    sections += [section_of_machine(document), section_of_command(document)]
    return Page(
        "Why is it slow?",
        str(document.get("script")),
        answer_of_diagnosis(document),
        _facts(document),
        sections,
    )


def answer_of_diagnosis(document: Document) -> str:
    """Return what was found, in two sentences."""
    mean = part_of(document, "step_ms").get("mean")
    phases = part_of(document, "phases")
    total = sum(phases.values()) or 1.0
    largest = max(phases, key=lambda name: phases[name], default="")
    words = f"A step takes {wording.ms(mean)}"
    if largest:
        words += f"; {phases[largest] / total:.0%} of it is {_in_words(largest)}"
    words += ". "
    findings, mistakes = list_of(document, "findings"), list_of(document, "mistakes")
    if findings:
        first = findings[0]
        words += (
            f"The largest measured cause, {first['rule']} at {first['where']}, costs "
            f"{wording.ms(first['cost_ms'])} of it."
        )
    elif list_of(document, "suspects"):
        words += "No cause was measured; what is suspected is listed below."
    else:
        words += "No remedy gains more than identical runs differ."
    if mistakes:
        plural = "s" if len(mistakes) > 1 else ""
        words += f" {len(mistakes)} mistake{plural} of learning found."
    return words


def _in_words(phase: str) -> str:
    words = {"data": "waiting for data", "other": "outside model and optimizer"}
    return words.get(phase, f"the {phase}")


def _facts(document: Document) -> list[Fact]:
    step, limits = part_of(document, "step_ms"), part_of(document, "limits")
    spread = f"5 to 95 %: {wording.number(step.get('low'))} to {wording.number(step.get('high'))}"
    facts = [
        Fact("a step takes, on average", wording.ms(step.get("mean")), spread),
        Fact("median", wording.ms(step.get("median")), f"{wording.number(step.get('n'))} steps"),
    ]
    if wording.is_number(document.get("noise_floor")):
        words = "a cost below that is not told apart"
        facts.append(
            Fact("identical runs differ by", wording.percent(document["noise_floor"]), words)
        )
    if wording.is_number(limits.get("least_step_ms")):
        words = "at the highest rates measured here"
        facts.append(Fact("this machine's limit", wording.least_ms(limits["least_step_ms"]), words))
    return facts


def sections_of_diagnosis(document: Document) -> list[Section]:
    """Return the sections that a diagnosis has wherever it is shown."""
    sections = [_step(document), _causes(document)]
    mistakes = [
        Card(
            "▲ mistake",
            str(each.get("rule")),
            where=str(each.get("where")),
            parts=_parts(each, "evidence", "remedy"),
            tone="bad",
        )
        for each in list_of(document, "mistakes")
    ]
    if mistakes:
        lead = "These change what is learned, whatever they cost."
        sections.append(Section("Mistakes", mistakes, lead))
    sections += [*_suspects(document), *_opportunities(document)]
    sections += [_limits(document), _basis(document)]
    return [section for section in sections if section.blocks]


def _step(document: Document) -> Section:
    whole = document.get("covers_whole_epochs")
    covers = "whole epochs, evaluation included" if whole else "no whole epoch was observed"
    caption = f"A mean step by phase ({covers})."
    blocks = blocks_of_phases(part_of(document, "phases"), {}, ("as it is",), caption)
    blocks += blocks_of_timeline(part_of(document, "timeline"))
    lines = [
        (
            str(each.get("phase")),
            str(each.get("where")),
            wording.percent(each.get("share")),
            str(each.get("text") or ""),
        )
        for each in list_of(document, "lines")
    ]
    if lines:
        head = ("phase", "line", "share of the phase", "source")
        blocks += [Text("The lines below which the large phases are spent:"), Table(head, lines)]
    return Section("Where a step's time goes", blocks)


def _causes(document: Document) -> Section:
    findings = list_of(document, "findings")
    step, floor = part_of(document, "step_ms").get("mean"), document.get("noise_floor")
    blocks: list[Block] = []
    if findings:
        noise = floor * step if wording.is_number(floor) and wording.is_number(step) else None
        rows = [
            Interval(
                f"{place}. {each.get('rule')}",
                each["cost_ms"],
                each["low"],
                each["high"],
                f"{wording.ms(each['cost_ms'])} ({each['low']:.2f} to {each['high']:.2f})",
                each["low"] > (noise or 0.0),
            )
            for place, each in enumerate(findings, 1)
        ]
        title = "What each cause costs, in ms of a step, with its interval"
        caption = "What was taken off a step when the remedy, or its upper bound, was tried."
        blocks.append(
            Chart.of(
                lambda width: draw_intervals(rows, width, "ms of a step", title, noise=noise),
                caption,
            )
        )
    for place, each in enumerate(findings, 1):
        cost = f"costs {wording.ms(each['cost_ms'])} a step"
        share = f", {each['cost_ms'] / step:.0%} of it" if wording.is_number(step) and step else ""
        most = ""
        if wording.is_number(each.get("at_most_ms")):
            most = "; " + in_words_of_most(
                each["cost_ms"],
                each["at_most_ms"],
                str(each.get("bound_words") or ""),
                wording.ms(each["at_most_ms"]),
            )
        interval = f" (interval {each['low']:.2f} to {each['high']:.2f} ms{most})"
        parts = [*_parts(each, "evidence", "remedy", "numerics", "confidence")]
        if each.get("plan"):
            parts.append(("plan", wording.plan(each["plan"])))
        blocks.append(
            Card(
                f"{place}.",
                str(each.get("rule")),
                cost + share + interval,
                str(each.get("where")),
                parts,
                "bad",
            )
        )
    ruled_out = [str(line) for line in list_of(document, "ruled_out")]
    if ruled_out:
        blocks += [Text("Checked, no gain by itself:"), Lines(ruled_out)]
    if not blocks:
        blocks.append(Text("No cause was measured."))
    return Section("What was slow: the measured causes", blocks)


def _parts(each: Document, *names: str) -> Sequence[tuple[str, str]]:
    return [(name, wording.ended(each[name])) for name in names if each.get(name)]


def _suspects(document: Document) -> list[Section]:
    cards = [_suspect(each) for each in list_of(document, "suspects")]
    lead = "A rule points at these, and no trial has confirmed it."
    return [Section("Suspected", cards, lead)] if cards else []


def _suspect(each: Document) -> Card:
    why = wording.ended(each.get("why"))
    # What was tried without a result says so itself.
    state = "undecided" if why.startswith(UNDECIDED) else "not measured"
    return Card(
        "? suspected",
        str(each.get("rule")),
        f"takes up to {wording.ms(each.get('at_most_ms'))} of a step, {state}",
        str(each.get("where")),
        [
            *_parts(each, "evidence"),
            (state, why.removeprefix(UNDECIDED)),
            *_parts(each, "remedy"),
        ],
    )


def _opportunities(document: Document) -> list[Section]:
    rows = [
        (
            wording.plan({each.get("technique"): each.get("options")}),
            f"{wording.ms(each['saves_ms'])} ({each['low']:.2f} to {each['high']:.2f})",
            str(each.get("numerics")),
            str(each.get("remedy", "")),
        )
        for each in list_of(document, "opportunities")
    ]
    head = ("technique", "saves in a step", "numerics", "in the script")
    blocks: list[Block] = [Table(head, rows)] if rows else []
    without_gain = [str(line) for line in list_of(document, "without_gain")]
    if without_gain:
        blocks += [Text("Tried, no gain found:"), Lines(without_gain)]
    lead = "Switches that are not set, and are no mistake."
    return [Section("What else would make it faster", blocks, lead)] if blocks else []


def _limits(document: Document) -> Section:
    limits = part_of(document, "limits")
    blocks: list[Block] = []
    least, takes = limits.get("least_step_ms"), part_of(document, "step_ms").get("median")
    if wording.is_number(least):
        blocks.append(
            Text(
                f"In these formats a step could not run faster than {wording.least_ms(least)} on "
                f"this machine; it takes {wording.ms(takes)} (median)."
            )
        )
    rates = part_of(limits, "ceilings")
    rows = [
        ("operations of a step", wording.number(limits.get("flops"))),
        ("computing them takes at least", wording.least_ms(limits.get("computing_ms"))),
        ("state to read and write", wording.size(limits.get("state_bytes"))),
        ("moving it takes at least", wording.least_ms(limits.get("moving_ms"))),
        ("FLOPs utilization", wording.percent(limits.get("flops_utilization"))),
        ("float32 products", f"{wording.number(rates.get('fp32_gflops'))} GFLOP/s"),
        ("bfloat16 products", f"{wording.number(rates.get('bf16_gflops'))} GFLOP/s"),
        ("copies", f"{wording.number(rates.get('copy_gb_s'))} GB/s"),
    ]
    known = [row for row in rows if wording.NOTHING not in row[1]]
    if known:
        blocks.append(Table(("limit", "value"), known, "How that was calculated"))
    if limits.get("why_unknown"):
        blocks.append(Text(wording.sentence(f"not known: {limits['why_unknown']}")))
    return Section("The limits of this machine", blocks)


def _basis(document: Document) -> Section:
    anchor = part_of(document, "anchor")
    items = []
    if anchor:
        sure = f"(confidence {anchor.get('confidence')})"
        items.append(f"Steps were recognised by {anchor.get('kind')} {sure}.")
    if document.get("planned_steps") is not None:
        items.append(f"The run takes {wording.number(document['planned_steps'])} steps.")
    items += [wording.sentence(note) for note in list_of(document, "notes")]
    items += [
        f"Trials could still have changed: {line}" for line in list_of(document, "unprotected")
    ]
    return Section("What this rests on", [Lines(items)] if items else [])
