"""The page of `hotlap verify`: does a script learn under one plan what it learns under another?"""

from hotlap.report.page import wording
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.verdict import MEANING, blocks_of_verdict
from hotlap.report.page.view import Block, Document, Fact, Page, Section, Table, list_of, part_of


def page_of_compared(document: Document) -> Page:
    """Return the page of what `hotlap verify --json` prints."""
    verdict = part_of(document, "verdict")
    sections = sections_of_compared(document)
    sections += [section_of_machine(document), section_of_command(document)]
    steps = f"over {wording.number(verdict.get('horizon_steps'))} steps"
    return Page(
        "Does it learn the same?",
        str(document.get("script")),
        answer_of_compared(document),
        [Fact("verdict", str(verdict.get("tier")), steps)],
        sections,
    )


def answer_of_compared(document: Document) -> str:
    """Return the verdict in a sentence."""
    tier = str(part_of(document, "verdict").get("tier"))
    return wording.sentence(f"Under plan B it learns {MEANING.get(tier, tier)}")


def sections_of_compared(document: Document) -> list[Section]:
    """Return the sections that this has wherever it is shown."""
    rows = [
        (words, wording.plan(part_of(document, key).get("plan")))
        for key, words in (("a", "A, called the plain run"), ("b", "B"))
    ]
    blocks: list[Block] = [Table(("what was compared", "plan"), rows)]
    blocks += blocks_of_verdict(part_of(document, "verdict"))
    states = [
        (str(each.get("name")), str(each.get("state")), str(each.get("why")))
        for each in list_of(document, "techniques")
    ]
    if states:
        blocks.append(Table(("technique of B", "state", "why"), states))
    return [Section("Why it may be believed", blocks)]
