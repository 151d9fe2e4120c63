"""Nests the spans of a trace by their times; unions, differences and lengths of intervals."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.trace.chrome.reading import ANNOTATION, OPERATOR, RUNTIMES, Recording, Span

Interval = tuple[int, int]
"""Start and end, in ns."""


@dataclass(slots=True, eq=False)
class Node:
    """A span of the host, and the one that it lies in."""

    span: Span
    parent: "Node | None"
    self_ns: int
    """Its time without what lies in it."""

    def ancestors(self) -> Iterator["Node"]:
        """Give what it lies in, from the innermost outwards."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def inside(self, category: str) -> bool:
        """True if it lies in a span of this category."""
        return any(each.span.category == category for each in self.ancestors())


def nest(recording: Recording) -> list[Node]:
    """Return the operators, annotations and calls of the runtime of all threads, nested.

    As in torch's own tables, a span that outlasts another one does not lie in it.
    """
    open_nodes: dict[tuple[Any, Any], list[Node]] = {}
    found: list[Node] = []
    for span in recording.of(OPERATOR, ANNOTATION, *RUNTIMES):
        stack = open_nodes.setdefault(span.thread, [])
        while stack and (span.start >= stack[-1].span.end or span.end > stack[-1].span.end):
            stack.pop()
        parent = stack[-1] if stack else None
        if parent is not None:
            parent.self_ns -= span.ns
        node = Node(span, parent, span.ns)
        stack.append(node)
        found.append(node)
    return found


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same instants as disjoint intervals, sorted.

    >>> union([(5, 8), (0, 2), (1, 3)])
    [(0, 3), (5, 8)]
    """
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > start:
            found.append((start, end))
    return found


def without(intervals: Sequence[Interval], removed: Sequence[Interval]) -> list[Interval]:
    """Return disjoint intervals without the instants of others, which are disjoint and sorted.

    >>> without([(0, 10)], [(2, 3), (9, 12)])
    [(0, 2), (3, 9)]
    """
    found: list[Interval] = []
    for start, end in intervals:
        for first, last in removed:
            if last <= start or first >= end:
                continue
            if first > start:
                found.append((start, first))
            start = last
            if start >= end:
                break
        if start < end:
            found.append((start, end))
    return found


def clipped(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return what of the intervals lies in a window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if end > start]


def length(intervals: Iterable[Interval]) -> int:
    """Return the sum of the lengths."""
    return sum(end - start for start, end in intervals)
