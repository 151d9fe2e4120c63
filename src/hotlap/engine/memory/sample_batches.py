"""A few of a task's samples, collated to batches of any size, for checks and estimates."""

from collections.abc import Sequence
from typing import Any

import torch

from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.task import Task


def first_samples(task: Task, count: int) -> list[Any]:
    """Return the first samples of a task's data as they are read, as many as there are.

    Raises:
        UsageError: the data set is a stream that gives none.
    """
    kind = Stream if task.is_stream else Source
    source = kind(task.data, count, seed=task.seed, shuffle=False, collate=list)
    ((_, samples),) = next(source.epoch(0))
    return samples


def batches_of(samples: Sequence[Any], task: Task) -> Source:
    """Return what makes batches of these samples, by its `batch_of`, as the task's loss gets them.

    A sample may come several times in a batch; each time its transforms draw the same.
    """
    return Source(
        samples,
        len(samples),
        seed=task.seed,
        shuffle=False,
        collate=task.collate,
        transform=task.transform,
        batch_transform=task.batch_transform,
    )


def per_sample(shape: torch.Size, samples: int, following: torch.Size) -> tuple[int, ...] | None:
    """Return what a sample adds to each dimension of a tensor, 0 where its size is fixed.

    Args:
        shape: for a batch of `samples`.
        samples: number of these.
        following: its shape for a batch with one sample more.

    Returns:
        None where a size is neither fixed nor a multiple of the number of samples.

    >>> per_sample(torch.Size([4, 3]), 4, torch.Size([5, 3]))
    (1, 0)
    """
    if len(shape) != len(following):
        return None
    added = tuple(after - before for before, after in zip(shape, following, strict=True))
    fits = all(more == 0 or more * samples == size for more, size in zip(added, shape, strict=True))
    return added if fits else None
