"""Text that was wrapped for a source file, wrapped for a terminal instead."""

import re
import textwrap
from dataclasses import dataclass

_LABEL = re.compile(r"(?P<head>\S(?: ?\S){0,18} {2,})\S")
"""`What it does   keeps each sample ...`: lines that follow begin under `keeps`."""
_ITEM = re.compile(r"(?P<head> *(?:[-*]|\d+[.)]) +)\S")
_KEY = re.compile(r"(?P<head> +)[\w.`]+: +\S")
_DRAWN = re.compile(r" *(?:\||`--|```|>>> )")
"""A table, a tree, or a fence of code."""
_CODE_INDENT = 4
_KEY_HANG = 4


@dataclass
class _Paragraph:
    text: str
    hang: int
    """Column in which its further lines begin."""
    is_kept: bool = False
    """True for code, tables and drawings: never joined, never wrapped."""


def reflow(text: str, width: int, *, joins: bool = True) -> str:
    """Return the text with its paragraphs wrapped at `width` columns.

    Lists, labels and their columns stay, and so does every line of code, of a table or of a tree.

    Args:
        text: lines as somebody wrote them.
        width: columns of the terminal.
        joins: False if every line of the text is a paragraph of its own.
    """
    lines: list[str] = []
    for paragraph in _paragraphs(text, joins=joins):
        if paragraph.is_kept or len(paragraph.text) <= width:
            lines.append(paragraph.text)
            continue
        # Under a wide label nothing would be left of a narrow terminal.
        hang = paragraph.hang if paragraph.hang <= width // 3 else 2
        lines += textwrap.wrap(
            paragraph.text,
            width,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _paragraphs(text: str, *, joins: bool) -> list[_Paragraph]:
    found: list[_Paragraph] = []
    is_open = is_fenced = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        is_fence = line.lstrip().startswith("```")
        if not line.strip():
            found.append(_Paragraph("", 0))
            is_open = False
        elif is_fenced or _is_kept(line, indent, is_open=is_open):
            found.append(_Paragraph(line, indent, is_kept=True))
            is_open = False
        elif joins and is_open and indent == found[-1].hang and _goes_on(found[-1].text, line):
            found[-1].text += f" {line.strip()}"
        else:
            found.append(_Paragraph(line.rstrip(), _hang(line, indent)))
            # A heading of what follows, such as `Options:`, takes nothing in.
            is_open = re.fullmatch(r"\w+:", line.strip()) is None
        is_fenced ^= is_fence
    return found


def _is_kept(line: str, indent: int, *, is_open: bool) -> bool:
    if _DRAWN.match(line):
        return True
    return indent >= _CODE_INDENT and not is_open and not _begins_block(line)


def _goes_on(text: str, line: str) -> bool:
    """Return whether a line belongs to the paragraph above it."""
    # Beside a label, a word and a colon are a part of the sentence.
    is_sentence = _LABEL.match(text) is not None and _KEY.match(line) is not None
    return is_sentence or not _begins_block(line)


def _begins_block(line: str) -> bool:
    return any(pattern.match(line) for pattern in (_LABEL, _ITEM, _KEY))


def _hang(line: str, indent: int) -> int:
    for pattern in (_LABEL, _ITEM):
        match = pattern.match(line)
        if match is not None:
            return len(match["head"])
    return indent + _KEY_HANG if _KEY.match(line) else indent
