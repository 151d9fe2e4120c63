"""Rules, one file each: functions of a trace that nominate what may be slow; only trials convict.

One file, one rule: a module with a docstring, a pure function from `Trace` to nominations, and a
`Rule` named `RULE`. Every such file in this package is found, and in `hotlap.rules.mistakes`, whose
rules say where something else is learned than is meant. No torch in here.

`hotlap.rules.memory` has those that read what a run allocates.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable

from hotlap.plan.outside import load_object
from hotlap.rules import mistakes
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

__all__ = ["Nomination", "Rule", "nominate", "registry"]

_NO_RULES = (
    "evaluations",
    "forward_lines",
    "memory",
    "mistakes",
    "nomination",
    "record",
    "sampled",
    "windows",
)


def registry(extra: Iterable[str] = ()) -> dict[str, Rule]:
    """Return name -> rule.

    Args:
        extra: rules from outside, as `module:NAME`.

    Raises:
        UsageError: one of them is no rule.
    """
    own = [
        importlib.import_module(f"{package.__name__}.{module.name}").RULE
        for package in (sys.modules[__name__], mistakes)
        for module in pkgutil.iter_modules(package.__path__)
        if module.name not in _NO_RULES
    ]
    given = [load_object(spec, "rule", Rule) for spec in extra]
    return {rule.name: rule for rule in (*own, *given)}


def nominate(trace: Trace, rules: Iterable[Rule] | None = None) -> list[Nomination]:
    """Return what any rule nominates, what may cost most first."""
    known = registry().values() if rules is None else rules
    found = [nomination for rule in known for nomination in rule.nominations(trace)]
    return sorted(found, key=lambda nomination: -nomination.at_most_ms)
