"""Makes a rank's sources of training and held-out batches from a task, with feed techniques."""

from typing import Any

import torch

from hotlap.device.accelerator import Device
from hotlap.distributed.reduce import Reduce
from hotlap.engine.evaluation_guard import kept_random_states
from hotlap.feed.memory.common_rows import Tables
from hotlap.feed.memory.place import HostPlace
from hotlap.feed.sources.lengths import LengthSource
from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.feed.transfer.plain import DeviceTransfer, to_device
from hotlap.plan import Plan
from hotlap.sequences.lengths import Budget, bucket, lengths_of
from hotlap.task import Task, is_stream
from hotlap.techniques import FeedTarget
from hotlap.techniques.applying import Applied


def training_source(task: Task, reduce: Reduce) -> Source | Stream:
    """Return what gives a rank its share of the task's training samples in batches, no technique
    around it."""
    options: dict[str, Any] = {
        "micro": task.most_samples,
        "seed": task.seed,
        "shuffle": task.shuffle,
        "drop_last": task.drop_last,
        "collate": task.collate,
        "transform": task.transform,
        "batch_transform": task.batch_transform,
        "rank": reduce.rank,
        "world": reduce.world,
    }
    if task.is_stream:
        return Stream(
            task.data,
            task.logical_batch,
            buffer=task.shuffle_buffer,
            ends=task.steps is None,
            **options,
        )
    per_epoch = task.steps_per_epoch or 1
    options["epochs"] = task.epochs or -(-(task.steps or 0) // per_epoch)
    if task.lengths is None:
        return Source(task.data, task.logical_batch, **options)
    return LengthSource(
        task.data,
        task.logical_batch,
        lengths=task.sample_lengths,
        budget=task.budget,
        accumulate=task.accumulate,
        **options,
    )


def held_out_source(task: Task, reduce: Reduce) -> Source | Stream | None:
    """Return what gives a rank its share of the held-out samples, in batches as large as those of
    training; None if the task has none."""
    if task.held_out is None:
        return None
    options: dict[str, Any] = {
        "seed": task.seed,
        "shuffle": False,
        "collate": task.collate,
        "rank": reduce.rank,
        "world": reduce.world,
    }
    size = task.most_samples * reduce.world
    if is_stream(task.held_out):
        return Stream(task.held_out, size, ends=True, name="held_out", **options)
    if task.budget is None:
        return Source(task.held_out, size, **options)
    tokens = task.budget.tokens
    if not callable(task.lengths):
        # Their lengths are not known; as many as would fit if all were the longest.
        longest = int(task.budget.edges[-1])
        return Source(task.held_out, max(1, tokens // longest), **options)
    lengths = lengths_of(task.lengths, task.held_out)
    # One that is longer than all of training is measured alone.
    padded = bucket(int(lengths.max()), task.budget.to)
    budget = Budget(lengths, max(tokens, padded), task.budget.to)
    most = budget.most_samples
    return LengthSource(task.held_out, most, lengths=lengths, budget=budget, **options)


def first_batch(source: Source | Stream | None, hardware: Device) -> Any:
    """Return a batch of the first sample, on the device; None of a stream, which is read once."""
    if not isinstance(source, Source):
        return None
    epoch = source.samples.epoch
    with kept_random_states():
        batch = source.batch_of(torch.tensor([0]))
    source.samples.epoch = epoch
    return to_device(batch, hardware.name)


def tables_of(plan: Plan, reduce: Reduce) -> Tables | None:
    """Return where ranks of this machine find the copies that they have together.

    Every rank makes the same call.
    """
    if reduce.world == 1 or "resident" not in plan.techniques:
        return None
    HostPlace.sharers = reduce.ranks.local_world
    return Tables.of_ranks(reduce.gather)


def with_techniques(
    source: Source | Stream,
    applied: Applied,
    hardware: Device,
    fill_ahead: bool,
    tables: Tables | None = None,
    *,
    is_held_out: bool = False,
) -> Source | Stream:
    """Return a source as the plan's techniques of the feed make it, and moved to the device.

    Args:
        source: it is changed in place.
        applied: the plan's techniques.
        hardware: the device.
        fill_ahead: let the feed reach its steady state at once, for trials.
        tables: of the copies that ranks of this machine have together.
        is_held_out: it gives the samples to evaluate on.
    """
    target = FeedTarget(
        source,
        own_order=True,
        is_held_out=is_held_out,
        fill_ahead=fill_ahead,
        size=source.length,
        device=hardware,
        tables=tables,
    )
    applied.apply("feed", target)
    target.loader = None
    source.wraps, source.notes = target.fetchers, target.notes
    if hardware.has_own_memory:
        source.transfer = target.transfer or DeviceTransfer(hardware.name)
    return source
