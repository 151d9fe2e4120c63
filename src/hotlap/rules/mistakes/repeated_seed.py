"""The seed is set again before each epoch.

What it sees   a loader that shuffles, and whose random generator is in the same state each time it
               is begun, under one optimizer. The first pass alone may differ: workers that persist
               draw once more when they start.
Why it matters every epoch shows the same samples in the same batches. Where it is torch's own
               generator, dropout, noise and augmentation in the loop are the same as well: training
               learns from fewer combinations than is meant.
What to do     set the seed once, before the first epoch; make a generator that the loader is given
               once, too.
Evidence       a checksum of the generator's state at the beginning of each pass in which steps were
               taken. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the loop over a loader whose passes are all drawn from the same state."""
    found = []
    for loader in trace.facts.training_loaders:
        draws = [tuple(draw) for draw in loader.draws]
        later = draws[1:]
        is_later = len(later) > 1 and len({*later}) == 1 and later[0][1:] == draws[0][1:]
        if is_later or (len(draws) > 1 and len({*draws}) == 1):
            same = "the" if draws[0] == draws[-1] else "the last"
            count = len(draws) if draws[0] == draws[-1] else len(later)
            found.append(
                mistake(
                    loader.where,
                    "the random generator that shuffles was in the same state at the beginning of "
                    f"each of {same} {count} epochs that were seen: they have the same order",
                    "set the seed once, before the first epoch",
                )
            )
    return found


RULE = Rule(name="repeated_seed", kind="mistake", nominate=nominate)
