"""Gradients of several micro-batches are summed, not averaged.

What it sees   several backward passes of one line before each step, of losses that are means and
               that nothing divides, whose gradients nothing divides either.
Why it matters `backward()` adds to the gradients. The sum of n means is n times the gradient of the
               large batch that accumulation stands for: with SGD the learning rate is n times the
               one that is written down, and a norm that is clipped is n times as large.
What to do     `(loss / n).backward()`, where n is the number of micro-batches of a step.
Evidence       counts of forward and backward passes, batches and steps, the graph of the loss, and
               one gradient before it is used. It costs no time. Where passes share a batch, or no
               gradient could be compared, the remedy says when it is one.
"""

from hotlap.rules.mistakes.windows import (
    has_one_optimizer,
    most_common,
    runs_closures,
    split,
)
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward whose losses are added up as they are."""
    # Tasks with a loader each are summed on purpose.
    if len(trace.facts.training_loaders) > 1 or trace.learning.changed_gradients:
        return []
    windows = split(trace.events)[:-1]
    usual = most_common([len(window.backwards()) for window in windows])
    if not has_one_optimizer(trace) or runs_closures(trace) or usual < 2 or len(windows) < 2:
        return []
    lines = {event.where for window in windows for event in window.backwards()}
    forwards = trace.learning.forwards / len(windows)
    # Several losses of one forward pass are added up on purpose.
    if len(lines) != 1 or forwards < usual - 0.5:
        return []
    divided = f"(loss / {usual})"
    remedy = (
        f"`scaler.scale{divided}.backward()`"
        if trace.learning.scales
        else f"`{divided}.backward()`"
    )
    if not _is_sure(trace, usual, len(windows)):
        remedy = (
            f"{remedy}, unless the passes are of several tasks or the gradients are divided later"
        )
    return [
        mistake(
            loss.where,
            f"{usual} backward passes before each step, each of a mean over its micro-batch that "
            f"nothing divides: the gradient is {usual} times that of the batch",
            remedy,
        )
        for loss in trace.learning.losses
        if loss.where in lines and loss.is_mean
    ]


def _is_sure(trace: Trace, usual: int, steps: int) -> bool:
    """True if each pass had a batch of its own, and nothing was seen to divide the gradients."""
    batches = trace.anchor.votes.get("training_batches", 0)
    return trace.learning.compared_gradients > 0 and batches >= (usual - 0.5) * steps


RULE = Rule(name="summed_micro_batches", kind="mistake", nominate=nominate)
