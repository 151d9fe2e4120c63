"""Float16 without a GradScaler.

What it sees   losses of forward passes in float16, and no `GradScaler`; not where the script
               changes the gradients itself between backward and step, as to scale them by hand.
Why it matters gradients below 6e-8 are 0 in float16, and those below 6e-5 lose precision: small
               gradients vanish, and layers far from the loss stop learning.
What to do     a `torch.amp.GradScaler`, or bfloat16, which needs none.
Evidence       the dtype of autocast or of the model's output. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of losses in float16 that nothing scales."""
    return [
        mistake(
            loss.where,
            f"{loss.not_scaled} of {loss.backwards} losses come of a forward pass in float16, and "
            "no GradScaler scales them",
            "`scaler.scale(loss).backward()` with a torch.amp.GradScaler, or autocast to bfloat16",
        )
        for loss in trace.learning.losses
        if loss.not_scaled and not trace.learning.scales
        if not trace.learning.changed_gradients
    ]


RULE = Rule(name="float16_without_scaler", kind="mistake", nominate=nominate)
