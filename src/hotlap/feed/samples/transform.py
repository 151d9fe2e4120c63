"""Stages after reading: the transform of each sample, collation, the transform of the batch.

The samples of the data set itself are fixed, so they can be kept in memory; what a transform draws
follows from seed, epoch and sample alone. So every way to read gives the same batches, bit for bit.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from hotlap import rng
from hotlap.errors import RunError, UsageError
from hotlap.feed.samples.draws import Draws
from hotlap.feed.samples.order import derive_seed
from hotlap.feed.samples.uncollation import Kind, kind_of, uncollate

_OF_SAMPLES, _OF_BATCHES = 1, 2
"""Tell the random numbers of the two transforms apart, and from those of the data set."""

_NEVER_CHANGE = frozenset({bool, int, float, str, bytes, type(None)})

Read = Callable[[Any], Any]
"""`read(positions) -> batch`"""


def takes_generator(transform: Callable[..., Any]) -> bool:
    """Return whether a transform is one of (sample, generator), or of (sample).

    Raises:
        UsageError: it is neither.
    """
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):
        # Some that are written in C do not say; they know nothing of generators.
        return False
    needed = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(needed) > 2:
        raise UsageError(
            f"the task's transform takes {len(needed)} arguments. Expected: one or two, as in "
            "`transform(sample)`, or `transform(sample, generator)` to draw from that "
            "torch.Generator. Use functools.partial to bind others."
        )
    return len(needed) == 2


@dataclass
class UnstackedSamples:
    """Samples as they were read, which could not be had back from a stack of them."""

    samples: list[Any]


class Stages:
    """The stages behind a data set.

    Args:
        samples: the data set, as `Source` reads it; has `seed` and `epoch`.
        collate: makes a batch of a list of samples.
        transform: see `Task`.
        batch_transform: see `Task`.
    """

    def __init__(
        self,
        samples: Any,
        collate: Callable[[Any], Any],
        transform: Callable[..., Any] | None,
        batch_transform: Callable[[Any, Draws], Any] | None,
    ) -> None:
        self.samples, self.collate = samples, collate
        self.transform, self.batch_transform = transform, batch_transform
        self.holds = False
        """True if a technique keeps what is read, as batches."""
        self.uses_globals = transform is not None and not takes_generator(transform)
        """True if the transform draws from the process's own generators: not for threads."""
        self._kind: Kind = None

    def join(self, samples: list[Any]) -> Any:
        """Return what was read as one value, of which `make_batch` makes a batch."""
        if self.transform is None:
            return self.collate(samples)
        if not self.holds:
            return UnstackedSamples(samples)
        kinds = [kind_of(sample) for sample in samples]
        self._kind = self._kind or kinds[0]
        if self._kind is None or any(kind != self._kind for kind in kinds):
            self.holds = False
            return UnstackedSamples(samples)
        return default_collate(samples)

    @property
    def is_empty(self) -> bool:
        """True if samples are only collated."""
        return self.transform is None and self.batch_transform is None

    def wrap_read(self, read: Read) -> Read:
        """Return a function that puts what `read` gives through the stages."""

        def give(positions: Any) -> Any:
            joined = read(positions)
            with self.guard_generators():
                return self.make_batch(positions, joined)

        return give

    @contextmanager
    def guard_generators(self) -> Iterator[None]:
        """Leave the process's generators as they were.

        Raises:
            UsageError: a transform drew from them that should not.
        """
        states = rng.global_random_states()
        try:
            yield
        finally:
            drawn = rng.generator_that_advanced(states)
            if drawn is not None:
                rng.restore(states)
        if drawn is not None and not self.uses_globals:
            name = "transform" if self.batch_transform is None else "transform or batch_transform"
            raise UsageError(
                f"the task's {name} drew from {drawn}, so its result depends on which process "
                "reads the sample. Use `generator` in `transform(sample, generator)`, and `draws` "
                "in `batch_transform(batch, draws)`, to draw from instead; or define "
                "`transform(sample)` with one argument, before which the global RNGs are seeded."
            )

    def make_batch(self, positions: Any, joined: Any) -> Any:
        """Return the batch of the samples at `positions`, which `join` made one value of.

        Raises:
            RunError: a transform raised; the message names the sample.
        """
        wanted = positions.tolist() if isinstance(positions, torch.Tensor) else list(positions)
        batch = joined
        if self.transform is not None:
            if isinstance(joined, UnstackedSamples):
                # A transform may write to what it is given, and the data set may keep that.
                given = map(_copy_sample, joined.samples)
            else:
                given = uncollate(self._kind, joined)
            generator = torch.Generator()
            batch = self.collate(
                [
                    self._transform_sample(p, each, generator)
                    for p, each in zip(wanted, given, strict=True)
                ]
            )
        if self.batch_transform is None:
            return batch
        state = derive_seed(self.samples.seed, self.samples.epoch, _OF_BATCHES)
        try:
            return self.batch_transform(batch, Draws(state, wanted))
        except Exception as error:
            raise self._sample_error(
                "batch_transform", error, f"{wanted[0]} to {wanted[-1]}"
            ) from error

    def _transform_sample(self, position: int, sample: Any, generator: torch.Generator) -> Any:
        assert self.transform is not None
        seed = derive_seed(self.samples.seed, self.samples.epoch, position, _OF_SAMPLES)
        try:
            if not self.uses_globals:
                given = self.transform(sample, generator.manual_seed(seed))
            else:
                rng.reseed(seed)
                given = self.transform(sample)
        except Exception as error:
            raise self._sample_error("transform", error, str(position)) from error
        if given is None:
            raise UsageError(
                f"the task's transform returned None for sample {position}. Return the transformed "
                "sample."
            )
        return given

    def _sample_error(self, what: str, error: Exception, which: str) -> RunError:
        return RunError(
            f"{what} raised {type(error).__name__} for sample {which}, in epoch "
            f"{self.samples.epoch + 1}: {error}. Check {what} on that input."
        )


def _copy_sample(sample: Any) -> Any:
    """Return a sample whose tensors and arrays have memory of their own, laid out as it was."""
    kind = type(sample)
    if kind in _NEVER_CHANGE:
        return sample
    if kind is tuple:
        return tuple(
            [part.clone() if type(part) is torch.Tensor else _copy_sample(part) for part in sample]
        )
    if isinstance(sample, torch.Tensor):
        return sample.clone()
    if kind is np.ndarray:
        return sample.copy(order="K")
    if kind is dict:
        return {key: _copy_sample(part) for key, part in sample.items()}
    if kind is list:
        return [_copy_sample(part) for part in sample]
    if isinstance(sample, tuple) and hasattr(kind, "_fields"):
        return kind(*[_copy_sample(part) for part in sample])
    return sample


class Staged(Dataset[Any]):
    """For a DataLoader whose workers make whole batches, with `identity_collate`."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self._draws = False
        """True once a sample drew; seeding all generators takes a tenth of a small decode."""

    def __len__(self) -> int:
        return len(self.stages.samples)

    def __getitem__(self, position: int) -> Any:
        return self.__getitems__([position])

    def __getitems__(self, positions: list[int]) -> Any:
        """Return the batch of the samples at `positions`."""
        joined = self.stages.join(self._read(positions))
        with self.stages.guard_generators():
            return self.stages.make_batch(positions, joined)

    def _read(self, positions: list[int]) -> list[Any]:
        if not self._draws:
            states = rng.global_random_states()
            samples = [read_at(self.stages.samples.dataset, position) for position in positions]
            self._draws = rng.generator_that_advanced(states) is not None
            if not self._draws:
                return samples
        return [read_at(self.stages.samples, position) for position in positions]


def identity_collate(batch: Any) -> Any:
    """Return the batch."""
    return batch


def read_at(dataset: Any, position: int) -> Any:
    """Return a sample; what its data set raises says which one it was.

    Raises:
        RunError: the data set raised StopIteration, which would end the epoch without a word.
    """
    try:
        return dataset[position]
    except StopIteration as error:
        raise RunError(
            f"the dataset's `__getitem__` raised StopIteration for sample {position}. Return a "
            "sample for every index below `len(dataset)`; to report a faulty sample, raise another "
            "exception, such as ValueError."
        ) from error
    except Exception as error:
        error.add_note(f"hotlap: raised while reading sample {position} of the dataset")
        raise
