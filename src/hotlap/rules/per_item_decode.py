"""The loop waits while samples are read one by one.

What it sees   a DataLoader without worker processes whose `next` takes a share of the step: every
               sample of a batch goes through the data set's `__getitem__`, in the training process.
Why it costs   decoding, conversions and Python run while the model waits; between two batches the
               model's threads fall asleep, so the true cost is higher than the wait itself.
What to do     keep fixed samples in memory (technique `resident`), or read them in worker processes
               (technique `workers`); in the script: decode the whole data set once, index tensors.
Evidence       the wait per step, the line below which it was spent; convicted by serving the same
               batches from memory, or, where the samples cannot be kept, one batch again and again.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

WORTH_A_TRIAL = 0.03
"""Share of the step below which no trial is made: it would drown in noise."""

REPLAY = Plan({"replay": {}})
"""Serves one batch again and again: what a perfect feed would give."""
_WORTH_NAMING = 0.1
"""Share of the wait below which a line is not where it is spent."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate every training loader that reads in the training process."""
    mean = trace.step_ms()["mean"]
    waits = trace.phase_means()["data"]
    loaders = [x for x in trace.facts.training_loaders if x.map_style and x.num_workers == 0]
    if not loaders or waits < WORTH_A_TRIAL * mean:
        return []
    loader = loaders[0]
    below = [line for line in trace.lines if line.phase == "data" and line.where != loader.where]
    below = [line for line in below if line.share >= _WORTH_NAMING]
    where = below[0].where if below else loader.getitem or loader.where
    # Of a sampler of whole batches it is not known.
    size = f"{loader.batch_size} " if loader.batch_size else ""
    evidence = (
        f"the loop at {loader.where} waits {waits:.2f} of {mean:.2f} ms a step, in which the "
        f"{size}samples of a batch are read one by one"
    )
    if below:
        evidence += f"; {below[0].share:.0%} of the wait is spent in {where} and what it calls"
    workers = Plan({"workers": {"count": 2}})
    return [
        Nomination(
            where=where,
            evidence=evidence,
            remedies=(Plan({"resident": {}}), workers),
            advice={
                "resident": (
                    "decode the data set once into one tensor, before anything random, and index "
                    "it by batch"
                ),
                "workers": f"DataLoader(..., num_workers=2) at {loader.where}",
            },
            at_most_ms=waits,
            bound=REPLAY,
            bound_words="with one batch served again and again",
            by_hand=(
                f"what happens in the data set below {where} for each sample has to become cheaper:"
                " do it once before training, for a whole batch at a time, or on the device"
            ),
            partial=frozenset({"workers"}),
        )
    ]


RULE = Rule(name="per_item_decode", kind="speed", nominate=nominate)
