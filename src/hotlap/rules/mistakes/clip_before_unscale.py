"""Gradients are clipped while they are still scaled.

What it sees   with a `GradScaler`, clipping that comes before every `unscale_` since its last
               `update()`.
Why it matters the gradients are scaled by up to 65536 then, so their norm is far above the limit:
               every step is cut to the same length, and after it is unscaled to almost nothing.
What to do     `scaler.unscale_(optimizer)` before `clip_grad_norm_`.
Evidence       the order of the calls. It costs no time.
"""

from hotlap.rules.mistakes.windows import split
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the clipping of gradients that are unscaled later."""
    found, clipped = [], 0
    # With several optimizers, all of them may be unscaled before the first one is clipped.
    for window in split(trace.events, event_kinds.SCALER_UPDATE):
        clips = [n for n, e in enumerate(window.events) if e.kind == event_kinds.CLIP]
        unscaled = [n for n, e in enumerate(window.events) if e.kind == event_kinds.UNSCALE]
        clipped += bool(clips)
        if clips and (not unscaled or unscaled[0] > clips[0]):
            found.append(window.events[clips[0]].where)
    if not trace.learning.scales or not found or len(found) < clipped / 2:
        return []
    return [
        mistake(
            found[0],
            f"gradients were clipped before they were unscaled in {len(found)} of the "
            f"{clipped} steps with clipping",
            "`scaler.unscale_(optimizer)` before the gradients are clipped",
        )
    ]


RULE = Rule(name="clip_before_unscale", kind="mistake", nominate=nominate)
