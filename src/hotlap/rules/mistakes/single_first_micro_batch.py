"""The first step of an accumulation has one micro-batch.

What it sees   backward passes between steps: one before the first step, several before each of the
               others; and how many of the loader's batches are then left at the end of an epoch.
Why it matters the loop steps where `index % n == 0`, so it steps after micro-batch 0: the first
               step has one micro-batch, whose gradient is n times too small if losses are divided
               by n, and the last ones of the epoch have no step.
What to do     step where `(index + 1) % n == 0`, and after the last batch of the epoch.
Evidence       counts of backward passes and steps. It costs no time.
"""

from collections.abc import Sequence

from hotlap.rules.mistakes.windows import (
    Window,
    has_one_optimizer,
    most_common,
    runs_closures,
    split,
)
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of a loop whose first window is shorter than all others."""
    windows = split(trace.events)[:-1]
    counts = [len(window.backwards()) for window in windows]
    usual = most_common(counts[1:])
    if not has_one_optimizer(trace) or runs_closures(trace):
        return []
    if len(counts) < 4 or counts[0] != 1 or usual < 2 or _grows(windows):
        return []
    # Several losses, one of which begins later, are no micro-batches.
    if len({event.where for window in windows for event in window.backwards()}) > 1:
        return []
    return [
        mistake(
            trace.facts.optimizers[0].where,
            f"the first step follows 1 backward pass, the others follow {usual}: the loop steps "
            f"after micro-batch 0{_lost_tail(trace, usual)}",
            f"step where `(index + 1) % {usual} == 0`, and after the last batch of the epoch",
        )
    ]


def _grows(windows: Sequence[Window]) -> bool:
    """True if steps within an epoch have one micro-batch too, as in a warm-up of the batch size.

    Without a loader an epoch begins where gradients are zeroed that no step has used.
    """
    return any(
        len(window.backwards()) < 2
        and not window.count(event_kinds.LOADER_BEGUN)
        and window.count(event_kinds.BACKWARD) < 2
        for window in windows[1:]
    )


def _lost_tail(trace: Trace, usual: int) -> str:
    """Return how many micro-batches at the end of an epoch have no step, in words."""
    loaders = trace.facts.training_loaders
    if len(loaders) != 1 or loaders[0].batches is None:
        return ""
    batches = loaders[0].batches
    lost = (batches - 1) % usual
    if batches < 1 or not lost:
        return ""
    verb = "has" if lost == 1 else "have"
    return f", and the last {lost} of the {batches} micro-batches of an epoch {verb} no step"


RULE = Rule(name="single_first_micro_batch", kind="mistake", nominate=nominate)
