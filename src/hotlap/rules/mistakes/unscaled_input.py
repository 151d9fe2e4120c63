"""The input is far from normalized.

What it sees   numbers that go into the first layer of a model with a mean or a standard deviation
               far from those of normalized data (0 and 1). Not where that layer is not trained, or
               where a batch or instance norm comes next. Where a state dict was loaded before the
               first step, only the mean: some weights expect pixels whose mean was subtracted.
Why it matters gradients of the first layer grow with its input. One learning rate does not fit them
               and those of the other layers: training is slow, or diverges; and features with large
               numbers hide the others.
What to do     subtract the mean and divide by the standard deviation of the training data (images:
               divide by 255 first), or begin the model with batch norm.
Evidence       mean and standard deviation of the first batch, where the first layer gets it, and
               the norms of the gradients. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace

_FAR = 8.0


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the forward with numbers that are too large."""
    found = []
    loaded = any(
        event.kind == event_kinds.LOAD_STATE_DICT and event.step == 0 for event in trace.events
    )
    for each in trace.learning.inputs:
        is_far = abs(each.mean) >= _FAR or (each.std >= _FAR and not loaded)
        if not each.is_learned or not is_far:
            continue
        norms = ""
        if each.gradient_norm is not None:
            norms = f"; the norm of all gradients was {each.gradient_norm:.3g} at the first step"
            if each.later_norm is not None:
                norms += f", {each.later_norm:.3g} at the next ones (median)"
        found.append(
            mistake(
                each.where,
                f"the first layer ({each.layer}) gets numbers with mean {each.mean:.3g} and "
                f"standard deviation {each.std:.3g}, up to {each.most:.3g}{norms}",
                "normalize the input with the mean and standard deviation of the training data",
            )
        )
    return found[:1]


RULE = Rule(name="unscaled_input", kind="mistake", nominate=nominate)
