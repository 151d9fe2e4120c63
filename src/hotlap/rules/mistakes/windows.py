"""The events of a run by optimizer steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hotlap.trace import event_kinds
from hotlap.trace.schema import Event, Trace


@dataclass
class Window:
    """What happened up to a step of an optimizer, or another event that ends it, that included."""

    events: list[Event] = field(default_factory=list)

    def count(self, kind: str) -> int:
        """Return how many events of a kind there are."""
        return sum(event.kind == kind for event in self.events)

    def backwards(self) -> list[Event]:
        """Return the backward passes whose gradients the step uses: those since the last zeroing.

        Earlier ones are asked for something else, as to find the worst input, or are kept apart.
        """
        found: list[Event] = []
        for event in self.events:
            if event.kind == event_kinds.BACKWARD:
                found.append(event)
            elif event.kind == event_kinds.ZERO_GRAD:
                found.clear()
        return found


def split(events: Sequence[Event], end: str = event_kinds.OPTIMIZER_STEP) -> list[Window]:
    """Return the windows in order; the last one has no such end, and may be empty."""
    windows = [Window()]
    for event in events:
        windows[-1].events.append(event)
        if event.kind == end:
            windows.append(Window())
    return windows


def most_common(numbers: Sequence[int]) -> int:
    """Return the number that comes most often, 0 without any."""
    return max(set(numbers), key=list(numbers).count) if numbers else 0


def has_one_optimizer(trace: Trace) -> bool:
    """True if every step is of the same optimizer."""
    return len(trace.facts.optimizers) == 1


def runs_closures(trace: Trace) -> bool:
    """True if an optimizer may go backward itself, or in several steps of its own."""
    return any(
        each.implementation == "custom" or each.name.endswith(".LBFGS")
        for each in trace.facts.optimizers
    )


def training_lines(trace: Trace) -> set[str]:
    """Return the lines at which loops over training loaders begin."""
    return {loader.where for loader in trace.facts.training_loaders}
