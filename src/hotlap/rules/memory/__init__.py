"""The rules that read a `MemoryTrace` and say what takes memory without need.

One file, one rule: a module with a docstring, a pure function from `MemoryTrace` to findings, and a
`MemoryRule` named `RULE`. Every such file in this package is found. No torch in here.
"""

import importlib
import pkgutil

from hotlap.rules.memory.record import MemoryFinding, MemoryRule
from hotlap.trace.memory_schema import MemoryTrace

__all__ = ["MemoryFinding", "MemoryRule", "find_all", "registry"]

_NO_RULES = ("record", "retention")


def registry() -> dict[str, MemoryRule]:
    """Return name -> rule."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    rules = [
        importlib.import_module(f"{__name__}.{name}").RULE
        for name in names
        if name not in _NO_RULES
    ]
    return {rule.name: rule for rule in rules}


def find_all(trace: MemoryTrace) -> list[MemoryFinding]:
    """Return what any rule finds: first what grows, then what takes most at the peak."""
    found = [finding for rule in registry().values() for finding in rule.findings(trace)]
    return sorted(found, key=lambda finding: (not finding.grows, -finding.cost_bytes))
