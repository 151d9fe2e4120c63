"""Workers draw the same random numbers.

What it sees   a dataset that makes its samples with a random generator of its own, or of a global
               variable, read by worker processes, without a `worker_init_fn` and without code that
               seeds it; or a `worker_init_fn` that sets the same seed in every worker.
Why it matters each worker gets a copy of the dataset, and of the generator in the same state: all
               draw the same augmentations. Without `persistent_workers` they get the same copy in
               every epoch, so every epoch has the same ones. (torch seeds the global generators of
               torch, Python and NumPy in each worker; it does not know of others.)
What to do     draw from torch's global generator, or make the generator in `worker_init_fn` from
               `torch.initial_seed()`.
Evidence       the attributes of the dataset and its transforms, which of them and of the global
               variables the code uses that makes samples, and the code of `worker_init_fn`. It
               costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the loop over a loader whose workers have equal generators."""
    found = []
    for each in trace.learning.workers:
        workers = f"each of the {each.workers} workers" if each.workers > 1 else "the worker"
        again = "" if each.are_persistent else ", and again in every epoch"
        if each.generator:
            evidence = f"{workers} has a copy of the generator `{each.generator}` in the same state"
        elif each.is_seeded_alike:
            evidence = f"`worker_init_fn` sets the same seed in {workers}"
        else:
            continue
        found.append(
            mistake(
                each.where,
                evidence + again,
                "make the generator in `worker_init_fn` from `torch.initial_seed()`, or draw from "
                "torch's own"
                if each.generator
                else "seed from `torch.initial_seed()` in `worker_init_fn`: it differs in each "
                "worker and epoch",
            )
        )
    return found


RULE = Rule(name="copied_generator", kind="mistake", nominate=nominate)
