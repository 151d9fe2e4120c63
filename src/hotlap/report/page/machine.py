"""Where a document comes from: the machine, the versions, and the command that made it."""

from collections.abc import Mapping
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.view import Block, Code, Document, Section, Table, Text, part_of

_VERSIONS = (
    ("hotlap", "hotlap"),
    ("torch", "torch"),
    ("cuda", "CUDA of that torch"),
    ("driver", "driver"),
    ("python", "Python"),
    ("system", "system"),
)


def made_by(document: Document) -> Document:
    """Return what a document says of its making, empty if it says nothing."""
    return part_of(document, "made")


def section_of_machine(document: Document, title: str = "Where it was measured") -> Section:
    """Return the machine, its load, and the versions."""
    made = made_by(document)
    rows = [(name, str(made[key])) for key, name in _VERSIONS if made.get(key)]
    host = part_of(made, "host")
    rows += _hardware(host)
    if not rows:
        return Section(title, [Text("The document does not say on which machine it was made.")])
    return Section(title, [Table(("what", "value"), rows)])


def _hardware(host: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if host.get("cpu"):
        cores = f", {host['cores']} cores usable" if host.get("cores") else ""
        rows.append(("CPU", f"{host['cpu']}{cores}"))
    if host.get("memory_bytes"):
        rows.append(("memory", wording.size(host["memory_bytes"])))
    for gpu in host.get("gpus") or ():
        rows.append(("GPU", f"{gpu.get('name')}, {wording.size(gpu.get('memory_bytes'))}"))
    if host.get("omp_num_threads"):
        rows.append(("OMP_NUM_THREADS", str(host["omp_num_threads"])))
    if wording.is_number(host.get("busy_cores")):
        words = f"{host['busy_cores']:.1f} cores were busy with other processes at the start"
        rows.append(("load", words))
    return rows


def section_of_command(document: Document, more: str = "") -> Section:
    """Return how to get the same again.

    Args:
        document: what was read.
        more: another command, such as the one that uses what was found.
    """
    made = made_by(document)
    blocks: list[Block] = []
    if made.get("command"):
        # A search says when it was begun: it may have been continued since.
        of = "a search of " if document.get("kind") == "search" else ""
        when = f" This page shows the result of {of}{made['time']}." if made.get("time") else ""
        what = _what_it_does(document, str(made["command"]))
        blocks.append(Text(f"In the same folder, this command {what}.{when}"))
        blocks.append(Code(str(made["command"])))
    if more:
        blocks.append(Text("This uses what was found:"))
        blocks.append(Code(more))
    if not blocks:
        if document.get("kind") == "search":
            words = (
                "The folder of a search does not hold the command that began it; what "
                "`hotlap search --json` prints does."
            )
        else:
            words = "The document does not say which command made it."
        blocks.append(Text(words))
    return Section("How to reproduce it", blocks)


def _what_it_does(document: Document, command: str) -> str:
    """Return what the command does that made a document, if it is given again."""
    if document.get("kind") != "search":
        return "measures it again"
    if "--again" in command.split():
        return "searches again"
    return "prints this result; with --again, it searches again"
