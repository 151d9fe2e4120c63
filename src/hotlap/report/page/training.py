"""The HTML page of a training: losses, speed and memory of each epoch, and what the plan did."""

from collections.abc import Sequence
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.curves import Curve, draw_curves, is_drawable
from hotlap.report.page.history import NOT_FINITE
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.verdict import numbers_of
from hotlap.report.page.view import (
    Block,
    Chart,
    Document,
    Fact,
    Page,
    Section,
    Table,
    Text,
    list_of,
    part_of,
)


def page_of_training(document: Document) -> Page:
    """Return the page of what `hotlap train --json` prints."""
    subject = str(document.get("script") or document.get("run_dir") or "a training")
    sections = [_losses(document), _epochs(document), *sections_of_plan(document)]
    sections += [section_of_machine(document), section_of_command(document)]
    sections = [section for section in sections if section.blocks]
    return Page("How did the training go?", subject, _answer(document), _facts(document), sections)


def _answer(document: Document) -> str:
    final, epochs = part_of(document, "final"), list_of(document, "epochs")
    words = "Stopped before its end after" if document.get("stopped") else "Trained for"
    steps, begun = wording.number(document.get("steps")), document.get("begun_step")
    if begun:
        steps = f"{_steps_here(document)} of {steps}"
    words += f" {steps} steps in {wording.seconds(document.get('seconds'))}"
    words += f", resumed from step {wording.number(begun)}" if begun else ""
    if epochs:
        first, number = (epochs[0].get(key) for key in ("loss", "epoch"))
        fell = f", from {_loss(first)} in epoch {number}," if len(epochs) > 1 else ""
        words += f": the training loss{fell} is {_loss(final.get('loss'))}"
    metrics = ", ".join(
        f"{name} {wording.number(value)}" for name, value in part_of(final, "metrics").items()
    )
    words += f"; held out: {metrics}" if metrics else ""
    if document.get("skipped_steps"):
        words += (
            f". {wording.number(document['skipped_steps'])} steps were skipped, as their loss or "
            "gradient was not finite"
        )
    return wording.sentence(words)


def _steps_here(document: Document) -> str:
    """Return the steps that the process took which wrote the document."""
    steps, begun = document.get("steps"), document.get("begun_step")
    if not wording.is_number(steps) or not wording.is_number(begun):
        return wording.NOTHING
    return wording.number(steps - begun)


def _loss(value: Any) -> str:
    """Return the loss of an epoch; null stands for one that is not finite."""
    return wording.number(value) if wording.is_number(value) else NOT_FINITE


def _facts(document: Document) -> list[Fact]:
    took = wording.seconds(document.get("seconds"))
    if document.get("begun_step"):
        took = f"{_steps_here(document)} of them in {took}"
    facts = [
        Fact("speed, steady", f"{wording.number(document.get('samples_per_s'))} samples/s"),
        Fact("steps", wording.number(document.get("steps")), took),
        Fact("peak memory", wording.size(document.get("peak_memory_bytes"))),
    ]
    for name, value in part_of(part_of(document, "final"), "metrics").items():
        facts.append(Fact(f"held-out {name}", wording.number(value), "at the end"))
    return facts


def _losses(document: Document) -> Section:
    epochs = list_of(document, "epochs")
    xs = [row.get("epoch") for row in epochs]
    groups: list[tuple[str, list[Curve]]] = [
        ("loss", [Curve("training", xs, [row.get("loss") for row in epochs])])
    ]
    for name in dict.fromkeys(name for row in epochs for name in part_of(row, "held_out")):
        curve = Curve(
            f"held out, {name}", xs, [part_of(row, "held_out").get(name) for row in epochs], style=1
        )
        if name == "loss":
            groups[0][1].append(curve)
        else:
            groups.append((str(name), [curve]))
    blocks: list[Block] = []
    for name, curves in groups:
        blocks += chart_of(curves, "epoch", name, f"each epoch: {name}")
    return Section("What was learned", blocks if len(epochs) > 1 else [])


def chart_of(curves: Sequence[Curve], x_name: str, y_name: str, caption: str) -> list[Block]:
    """Return a chart with its numbers, nothing if no point can be drawn."""
    drawable = [curve for curve in curves if is_drawable(curve)]
    if not drawable:
        return []
    words = wording.sentence(caption)
    chart = Chart.of(lambda width: draw_curves(drawable, width, x_name, y_name, words), words)
    return [chart, numbers_of(drawable, x_name)]


def _epochs(document: Document) -> Section:
    epochs = list_of(document, "epochs")
    metrics = [*dict.fromkeys(name for row in epochs for name in part_of(row, "held_out"))]
    head = (
        "epoch",
        "steps",
        "loss",
        *(f"held-out {name}" for name in metrics),
        "samples/s",
        "time",
        "peak memory",
        "skipped",
    )
    rows = [
        (
            wording.number(row.get("epoch")),
            wording.number(row.get("steps")),
            _loss(row.get("loss")),
            *(wording.number(part_of(row, "held_out").get(name)) for name in metrics),
            wording.number(row.get("samples_per_s")),
            wording.seconds(row.get("seconds")),
            wording.size(row.get("peak_memory_bytes")),
            wording.number(row.get("skipped_steps")),
        )
        for row in epochs
    ]
    blocks: list[Block] = []
    if len(epochs) > 1:
        speed = Curve(
            "samples per second",
            [row.get("epoch") for row in epochs],
            [row.get("samples_per_s") for row in epochs],
            style=2,
        )
        blocks += chart_of([speed], "epoch", "samples/s", "training speed of each epoch")[:1]
    if rows:
        blocks.append(Table(head, rows))
    return Section("Each epoch", blocks)


def sections_of_plan(document: Document) -> list[Section]:
    """Return the plan with each technique's state and reason, and what ran out of memory."""
    rows = [
        (
            str(row.get("name")),
            str(row.get("state")),
            wording.ended("; ".join(filter(None, (row.get("why"), row.get("on_ranks"))))),
        )
        for row in list_of(document, "techniques")
    ]
    blocks: list[Block] = [
        Text(f"Plan {document.get('plan_hash')}: {wording.plan(document.get('plan'))}.")
    ]
    if rows:
        blocks.append(Table(("technique", "state", "why"), rows))
    for each in list_of(document, "warmed"):
        blocks.append(
            Text(
                f"The largest batch, {wording.number(each.get('samples'))} samples of "
                f"{wording.number(each.get('length'))} tokens, was tried before step 1: "
                f"{wording.size(each.get('peak_memory_bytes'))} at the peak."
            )
        )
    for each in list_of(document, "retries"):
        blocks.append(
            Text(
                f"Step {wording.number(each.get('step'))} ran out of memory with micro-batches of "
                f"{wording.number(each.get('samples'))}, and was taken again with at most "
                f"{wording.number(each.get('then'))}."
            )
        )
    return [Section("The plan, and what it did", blocks)]
