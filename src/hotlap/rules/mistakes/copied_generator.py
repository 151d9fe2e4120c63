"""Workers draw the same random numbers.

What it sees   a dataset that makes its samples with a random generator of its own, read by several
               worker processes, without a `worker_init_fn` and without code that seeds it.
Why it matters each worker gets a copy of the dataset, and of the generator in the same state: all
               draw the same augmentations. Without `persistent_workers` they get the same copy in
               every epoch, so every epoch has the same ones. (torch seeds the global generators of
               torch, Python and NumPy in each worker; it does not know of others.)
What to do     draw from torch's global generator, or make the generator in `worker_init_fn` from
               `torch.initial_seed()`.
Evidence       the attributes of the dataset and its transforms, and which of them the code uses
               that makes samples. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the loop over a loader whose dataset holds a generator."""
    return [
        mistake(
            each.where,
            f"each of the {each.workers} workers has a copy of the dataset's generator "
            f"`{each.generator}` in the same state",
            "make the generator in `worker_init_fn` from `torch.initial_seed()`, or draw from "
            "torch's own",
        )
        for each in trace.learning.workers
        if each.generator
    ]


RULE = Rule(name="copied_generator", kind="mistake", nominate=nominate)
