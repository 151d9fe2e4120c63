"""Every worker reads the whole stream.

What it sees   an `IterableDataset` in several worker processes that send the same batches.
Why it matters each worker has its own copy of the dataset, and iterates over all of it: an epoch
               has every sample once for each worker, and near each other.
What to do     take every n-th sample in `__iter__`, by `torch.utils.data.get_worker_info()`.
Evidence       digests of the first batches of a pass. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the loop over a loader whose workers send the same."""
    return [
        mistake(
            each.where,
            f"{each.repeats} of the first {each.looked_at} batches had come from another of the "
            f"{each.workers} workers already",
            "let each worker take its share in `__iter__`, by `torch.utils.data.get_worker_info()`",
        )
        for each in trace.learning.workers
        if each.repeats >= each.looked_at / 4 > 0
    ]


RULE = Rule(name="repeated_stream", kind="mistake", nominate=nominate)
