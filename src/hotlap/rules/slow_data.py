"""The loop waits for data that are a stream, or that worker processes read.

What it sees   a DataLoader over an iterable data set, or with worker processes, whose `next` takes
               a share of the step: what per_item_decode says of other loaders.
Why it costs   the model waits while a batch is made, or while the workers fall behind.
What to do     more worker processes, as far as there are cores, that stay from epoch to epoch
               (`persistent_workers=True`); less work per sample; the work done once before
               training, or for a whole batch on the device.
Evidence       the wait per step, as a clock around `next` shows it; convicted by the techniques
               `resident`, which keeps what workers have read, and `workers`, which sends batches of
               worker processes as bytes, with longer queues, or keeps processes that start in each
               epoch. No trial measures the wait for a stream.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

WORTH_SAYING = 0.1
_LONG_QUEUE = 8


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the first training loader, if it is none that per_item_decode looks at."""
    mean = trace.step_ms()["mean"]
    loaders = trace.facts.training_loaders
    if not loaders:
        return []
    loader, remedies, advice = loaders[0], (), {}
    # In each epoch, before its first batch is asked for.
    starts = mean * sum(
        spot.share
        for spot in trace.spots
        if spot.phase == "other" and spot.statement == loader.where and loader.num_workers
    )
    waits = trace.phase_means()["data"] + starts
    if waits < WORTH_SAYING * mean:
        return []
    if loader.map_style and loader.num_workers == 0:
        return []
    if loader.num_workers:
        source = f"{loader.num_workers} worker processes make the batches"
        by_hand = f"more workers than {loader.num_workers} at {loader.where}, up to the free cores"
        if starts:
            source += f"; {starts:.2f} ms of it is their start, once an epoch"
            by_hand = f"persistent_workers=True at {loader.where}; {by_hand}"
        own = {"count": loader.num_workers}
        kept = Plan({"workers": {**own, "persistent": True}})
        remedies = (
            *((kept,) if starts else ()),
            *(Plan({"workers": each}) for each in (own, {**own, "prefetch": _LONG_QUEUE})),
        )
        if loader.map_style and loader.plain_collate:
            remedies = (Plan({"resident": {}}), *remedies)
        advice = {
            "resident": f"samples that are decoded once, before training, and num_workers=0 at "
            f"{loader.where}",
            "workers": f"prefetch_factor={_LONG_QUEUE} at {loader.where}, and few, large tensors "
            "in a batch",
            str(kept): f"persistent_workers=True at {loader.where}",
        }
    else:
        source = "a stream makes the batches in the training process"
        by_hand = f"num_workers at {loader.where}, with a stream that gives each its own part"
    below = [line for line in trace.lines if line.phase == "data" and line.where != loader.where]
    where = below[0].where if below else loader.getitem or loader.where
    return [
        Nomination(
            where=where,
            evidence=f"the loop at {loader.where} waits {waits:.2f} of {mean:.2f} ms a step; "
            f"{source}",
            remedies=remedies,
            advice=advice,
            at_most_ms=waits,
            by_hand=f"{by_hand}; or less work for each sample",
            partial=frozenset({"workers"}),
        )
    ]


RULE = Rule(name="slow_data", kind="speed", nominate=nominate)
