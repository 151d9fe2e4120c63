"""`Block`, what a page is made of: facts, texts, tables, cards and charts, without any HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]
"""A JSON document of hotlap, read."""

WIDE, NARROW = 760, 330
"""Pixels of a chart's two drawings: a picture that is made smaller has letters that cannot be
read."""


@dataclass(frozen=True)
class Fact:
    """One of the figures at the top of a page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str
    kind: str = "text"


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    lines: str
    kind: str = "code"


@dataclass(frozen=True)
class Lines:
    """A list."""

    items: Sequence[str]
    kind: str = "lines"


@dataclass(frozen=True)
class Table:
    """Rows with a header. Where there is little room each row becomes a block."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str = ""
    """With one the table is folded, and opens under these words."""
    kind: str = "table"


@dataclass(frozen=True)
class Card:
    """Something that was found, with its evidence and what to do."""

    mark: str
    """A sign that says what it is without colour."""
    title: str
    figure: str = ""
    where: str = ""
    parts: Sequence[tuple[str, str]] = ()
    """(what, in words)."""
    tone: str = "plain"
    """`bad`, `good` or `plain`."""
    kind: str = "card"


@dataclass(frozen=True)
class Chart:
    """A picture, drawn once for screens and paper, and once for phones: as SVG in which everything
    is escaped."""

    wide: str
    narrow: str
    caption: str = ""
    kind: str = "chart"

    @classmethod
    def of(cls, draw: Callable[[float], str], caption: str = "") -> "Chart":
        """Return a chart of what draws it, which is called with the width in pixels."""
        return cls(draw(WIDE), draw(NARROW), caption)


Block = Text | Code | Lines | Table | Card | Chart


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""


@dataclass(frozen=True)
class Page:
    """All of a page."""

    title: str
    subject: str
    """What was measured, as in a script with its arguments."""
    answer: str
    """What came of it, in a sentence or two."""
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def list_of(document: Document, key: str) -> list[Any]:
    """Return a list of a document, empty if there is none."""
    found = document.get(key)
    return found if isinstance(found, list) else []


def part_of(document: Document, key: str) -> Document:
    """Return an object of a document, empty if there is none."""
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}
