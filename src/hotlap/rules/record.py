"""The one record that every rule is."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from hotlap.rules.nomination import Nomination
from hotlap.trace.schema import Trace


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Looks at a trace, and says what may be slow or wrong. Only a trial convicts of a cost.

    The docstring of the module that `nominate` is defined in is the rule's page.
    """

    name: str
    kind: Literal["speed", "memory", "mistake"]
    """What it costs; a `mistake` costs no time: something else is learned than is meant."""
    nominate: Callable[[Trace], list[Nomination]]
    """A pure function: the same trace gives the same nominations."""

    def nominations(self, trace: Trace) -> list[Nomination]:
        """Return what it nominates, under its name."""
        return [replace(each, rule=self.name, kind=self.kind) for each in self.nominate(trace)]

    @property
    def page(self) -> str:
        """What `hotlap explain` prints."""
        return inspect.getdoc(inspect.getmodule(self.nominate)) or ""
