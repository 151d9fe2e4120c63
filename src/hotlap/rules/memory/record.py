"""The records of the memory rules: `MemoryRule`, and the `MemoryFinding` that it gives."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hotlap.trace.memory_schema import MemoryTrace

FLOOR = 0.05
"""Share of the peak below which nothing is reported."""


@dataclass(frozen=True)
class MemoryFinding:
    """Memory that a run takes without need."""

    where: str
    """`file:line` in the user's code."""
    cost_bytes: int
    """At the peak; per step if `grows`."""
    grows: bool
    """It takes as much more with every step."""
    holder: str
    """The variable that holds it, as the user's code calls it; empty if none was found."""
    evidence: str
    remedy: str
    confidence: str = "high"
    rule: str = ""
    """Who found it; filled in by the rule's record."""

    def to_json(self) -> dict[str, Any]:
        """Return it with the keys that every finding of `hotlap diagnose` has."""
        return {
            "rule": self.rule,
            "kind": "memory",
            "cost_ms": None,
            "at_most_ms": None,
            "cost_bytes": self.cost_bytes,
            "grows": self.grows,
            "where": self.where,
            "holder": self.holder,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "numerics": "exact",
            "confidence": self.confidence,
        }


@dataclass(frozen=True, kw_only=True)
class MemoryRule:
    """Looks at the memory of a run, and says what takes it without need.

    The docstring of the module that `find` is defined in is the rule's page.
    """

    name: str
    find: Callable[[MemoryTrace], list[MemoryFinding]]
    """A pure function: the same trace gives the same findings."""

    def findings(self, trace: MemoryTrace) -> list[MemoryFinding]:
        """Return what it finds, under its name."""
        return [replace(each, rule=self.name) for each in self.find(trace)]

    @property
    def page(self) -> str:
        """What `hotlap explain` prints."""
        return inspect.getdoc(inspect.getmodule(self.find)) or ""


def size(count: float) -> str:
    """Return bytes in words, as in `1.5 MiB`."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:,.0f} bytes"
