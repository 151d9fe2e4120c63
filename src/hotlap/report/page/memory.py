"""The HTML page of `hotlap diagnose --memory`: where memory goes, what takes it needlessly."""

from hotlap.report.page import wording
from hotlap.report.page.bars import draw_stacks
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.memory_chart import draw_memory
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


def page_of_memory(document: Document) -> Page:
    """Return the page of what `hotlap diagnose --memory --json` prints."""
    sections = sections_of_memory(document)
    sections += [section_of_machine(document), section_of_command(document)]
    return Page(
        "Where does the memory go?",
        str(document.get("script")),
        answer_of_memory(document),
        _facts(document),
        sections,
    )


def sections_of_memory(document: Document) -> list[Section]:
    """Return the sections that this has wherever it is shown."""
    sections = [_where(document), _findings(document), _autocast(document), _basis(document)]
    return [section for section in sections if section.blocks]


def answer_of_memory(document: Document) -> str:
    """Return what was found, in two sentences."""
    memory = part_of(document, "memory")
    kinds = part_of(memory, "by_kind")
    largest = max(kinds, key=lambda kind: kinds[kind], default="")
    words = f"Tensors take {wording.size(memory.get('peak_bytes'))} at the peak"
    if largest and memory.get("peak_bytes"):
        kind = "of other kinds" if largest == "other" else largest
        words += f", {kinds[largest] / memory['peak_bytes']:.0%} of it {kind}"
    findings = list_of(document, "findings")
    plural = "s take" if len(findings) > 1 else " takes"
    words += (
        f". {len(findings)} thing{plural} memory without need"
        if findings
        else (". Nothing was found that takes memory without need")
    )
    return wording.sentence(words)


def _facts(document: Document) -> list[Fact]:
    memory = part_of(document, "memory")
    step = f"step {wording.number(memory.get('peak_step'))}, {memory.get('peak_phase')}"
    facts = [
        Fact("peak of tensors", wording.size(memory.get("peak_bytes")), step),
        Fact("grows by", f"{wording.size(memory.get('growth_bytes_per_step'))}", "each step"),
    ]
    resident = list_of(memory, "resident_bytes")
    if resident:
        last = f"{wording.size(resident[-1])} after the last step"
        facts.append(Fact("resident after step 1", wording.size(resident[0]), last))
    peak = part_of(memory, "device_peak")
    if peak:
        reserved = f"{wording.size(peak.get('reserved_bytes'))} reserved"
        facts.append(Fact("allocator's peak", wording.size(peak.get("allocated_bytes")), reserved))
    return facts


def _where(document: Document) -> Section:
    memory = part_of(document, "memory")
    blocks: list[Block] = []
    timeline = part_of(memory, "timeline")
    if list_of(timeline, "events"):
        steps = wording.number(memory.get("steps"))
        device = memory.get("device")
        caption = f"Memory of tensors on {device} over {steps} steps; dashed lines are their ends."
        blocks.append(Chart.of(lambda width: draw_memory(timeline, width), caption))
    kinds = {kind: amount for kind, amount in part_of(memory, "by_kind").items() if amount}
    total = sum(kinds.values()) or 1
    if kinds and not blocks:
        rows = [("at the peak", {kind: amount / 2**20 for kind, amount in kinds.items()})]
        title = "Memory at the peak by kind"
        blocks.append(Chart.of(lambda width: draw_stacks(rows, width, "MiB", title)))
    shares = [
        (kind, wording.size(amount), wording.percent(amount / total))
        for kind, amount in kinds.items()
    ]
    blocks.append(Table(("kind, at the peak", "size", "share"), shares))
    rows_at_peak = [
        (
            wording.size(row.get("bytes")),
            str(row.get("kind")),
            str(
                row.get("where")
                or ("before the first step" if row.get("is_older") else "outside your code")
            ),
            wording.number(row.get("count")),
        )
        for row in list_of(memory, "at_peak")
    ]
    if rows_at_peak:
        head = ("size", "kind", "made at", "tensors")
        blocks += [Text("Alive at the peak, by the line that made it:"), Table(head, rows_at_peak)]
    return Section("Where the memory goes", blocks)


def _findings(document: Document) -> Section:
    cards = [
        Card(
            f"{place}.",
            str(each.get("rule")),
            f"{wording.size(each.get('cost_bytes'))}{' a step' if each.get('grows') else ''}",
            str(each.get("where")),
            [
                (name, wording.sentence(each[name]))
                for name in ("evidence", "remedy")
                if each.get(name)
            ],
            "bad",
        )
        for place, each in enumerate(list_of(document, "findings"), 1)
    ]
    return Section("What takes memory without need", cards)


def _autocast(document: Document) -> Section:
    effect = part_of(part_of(document, "memory"), "autocast")
    if not effect:
        return Section("Autocast", [])
    used = "used" if effect.get("used") else "not used"
    blocks: list[Block] = [Text(f"Autocast ({effect.get('format')}) is {used}.")]
    without, with_ = part_of(effect, "without"), part_of(effect, "with")
    if without and with_:
        pair = (wording.size(way.get("peak_bytes")) for way in (without, with_))
        rows = [("peak", *pair, "")]
        for name, ratio in part_of(effect, "switched_is_faster_by").items():
            ms = (part_of(part_of(way, "ms"), name).get("median") for way in (without, with_))
            rows.append((name, *map(wording.ms, ms), wording.times(ratio)))
        blocks.append(Table(("by trial", "without", "with", "switching is faster by"), rows))
    blocks += [
        Text(wording.sentence(effect[key]))
        for key in ("why_not", "why_not_timed")
        if effect.get(key)
    ]
    return Section("Autocast", blocks)


def _basis(document: Document) -> Section:
    items = [wording.sentence(note) for note in list_of(document, "notes")]
    items += [f"Trials could still have changed: {x}" for x in list_of(document, "unprotected")]
    return Section("What this rests on", [Lines(items)] if items else [])
