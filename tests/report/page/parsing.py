"""Reads a page as a browser would, and says what is wrong with it."""

import re
from html.parser import HTMLParser

_EMPTY = {"meta", "link", "br", "hr", "img", "input", "col"}
_FETCHING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}
_OUTSIDE = re.compile(r"url\((?!#)|@import|https?:|//[a-z]", re.IGNORECASE)


class Reader(HTMLParser):
    """Collects the text of a page, and its faults."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.faults: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _EMPTY:
            self._open.append(tag)
        for name, value in attrs:
            if name in _FETCHING or name.startswith("on"):
                self.faults.append(f"<{tag}> has {name}={value}")
            if name != "class" and not name.startswith("data-") and _OUTSIDE.search(value or ""):
                self.faults.append(f"<{tag}> has {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self._open[-3:]}")
        elif tag not in _EMPTY:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "style":
            if _OUTSIDE.search(data):
                self.faults.append("the style sheet asks for something")
        else:
            self.text += f"{data} "


def read(html: str) -> Reader:
    """Return what a page holds."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    if reader._open:
        reader.faults.append(f"never closed: {reader._open}")
    return reader
