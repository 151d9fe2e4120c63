"""Gradients are clipped after the step that used them.

What it sees   clipping with no backward pass between it and the step before.
Why it matters the update has been made of the gradients as they were: nothing is clipped.
What to do     clip after `backward()` (and `scaler.unscale_`), before `optimizer.step()`.
Evidence       the order of the calls. It costs no time.
"""

from hotlap.rules.mistakes.windows import has_one_optimizer, split
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the clipping of gradients that were used already."""
    found = []
    clipped_in_time = 0
    windows = split(trace.events)[1:]
    for window in windows:
        first = [e for e in window.events if e.kind in (event_kinds.BACKWARD, event_kinds.CLIP)]
        # Not all backward passes are heard, see docs/limits.md.
        if len({each.kind for each in first}) == 2 and first[0].kind == event_kinds.CLIP:
            found.append(first[0].where)
        clipped_in_time += any(e.kind == event_kinds.CLIP for e in first[1:])
    if not has_one_optimizer(trace) or len(found) < 2 or clipped_in_time > len(found) / 2:
        return []
    return [
        mistake(
            found[0],
            f"gradients were clipped after the step, before the next backward pass, "
            f"{len(found)} times in {len(windows)} steps",
            "clip before `optimizer.step()`",
        )
    ]


RULE = Rule(name="clip_after_step", kind="mistake", nominate=nominate)
