"""`Task`: model, loss, data, batch size, optimizer: all that decides what is learned. No torch."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from hotlap.errors import UsageError, unknown_name
from hotlap.task.data_sets import check_data, is_stream, samples_in

PER = ("step", "epoch")
_CALLS = {
    "model": "model()",
    "loss": "loss(model, batch)",
    "optimizer": "optimizer(model)",
    "transform": "transform(sample)` or `transform(sample, generator)",
    "batch_transform": "batch_transform(batch, draws)",
}
"""Function of a task -> how it is called, for messages."""


@dataclass(frozen=True)
class Task:
    """What is learned. How it is executed is a `Plan`'s business, and never changes it.

    Exactly one of `epochs` and `steps` is given, and one of `batch_size` and `tokens_per_batch`.

    Raises:
        UsageError: a value is not allowed; the message says what is.
    """

    model: Callable[[], Any]
    """Makes the model. It is called once the random generators have been seeded. The model is then
    put into training mode, as `model.train()` does. A module that must stay in evaluation mode,
    such as a frozen batch norm, says so with a `train` method of its own."""
    loss: Callable[[Any, Any], Any]
    """`loss(model, batch)`: a mean over the batch's items, or (sum, count) where that is not what
    is meant: ignored targets, class weights, tokens of padded sequences."""
    data: Any
    """Training samples: a map-style data set (`__len__` and `__getitem__`), or an iterable one
    (`__iter__` begins again each time), which is a stream: see
    `hotlap.feed.sources.stream.Stream`."""
    optimizer: Callable[[Any], Any]
    """`optimizer(model)`: any optimizer of torch's kind over the model's parameters whose `step`
    needs no closure."""
    batch_size: int | None = None
    """Samples that `accumulate` of make one step of the optimizer."""
    accumulate: int = 1
    """`batch_size=64, accumulate=4` is `batch_size=256` in micro-batches of 64."""
    splits_statistics: bool = False
    """Let batch norm see `batch_size` samples at a time, where `accumulate` splits a step."""
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    """Initial weights, order of samples, augmentation and dropout follow from it."""
    shuffle: bool = True
    """Another order for each epoch; that of a stream is made with a buffer."""
    shuffle_buffer: int = 1000
    """Samples of a stream, held in memory by everyone who reads it, from which the next is drawn.
    It should be larger than what lies together in the stream, such as the samples of a file."""
    drop_last: bool = False
    """Leave out the last samples of an epoch that do not fill a step."""
    collate: Callable[[Any], Any] | None = None
    """Makes a batch of a list of samples; torch's default collation if None, and `hotlap.pad(...)`
    for samples of different lengths."""
    lengths: Any = None
    """Length of each sample in tokens: a sequence of whole numbers, or a function of a sample, for
    which every sample is read once. It lets the run say how much of its batches is padding, and
    try the largest of them before its first step."""
    tokens_per_batch: int | None = None
    """Instead of `batch_size`: a batch holds as many samples as this many tokens allow, padding
    included, and `accumulate` of them make a step. Batches hold samples of similar length, drawn
    again in every epoch; their number is the same in each. Needs `lengths`."""
    transform: Callable[..., Any] | None = None
    """The random part of each training sample: `transform(sample, generator)` draws from the
    torch.Generator that it is given, `transform(sample)` from the global generators. Either way
    its numbers follow from seed, epoch and sample. Samples of the data set itself can then be fixed
    and kept in memory. Not applied to `held_out`."""
    batch_transform: Callable[[Any, Any], Any] | None = None
    """`batch_transform(batch, draws)`: the same for whole batches, behind collation. `draws` is a
    `hotlap.feed.samples.draws.Draws`, whose rows follow from seed, epoch and sample."""
    schedule: Callable[[Any], Any] | None = None
    """`schedule(optimizer)`: any learning-rate scheduler of torch's kind."""
    schedule_per: Literal["step", "epoch"] = "step"
    """How often the scheduler steps: after every step that was taken, or after every epoch."""
    clip_norm: float | None = None
    """Largest norm of all gradients together."""
    clip_value: float | None = None
    """Largest magnitude of an entry of a gradient."""
    held_out: Any = None
    """Samples to evaluate on after every epoch."""
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """Name -> `metric(model, batch)`, which returns (sum, count) over a batch of `held_out`. The
    loss is always evaluated. Each of them goes forward by itself."""
    evaluate: Callable[[Any, Any], Mapping[str, Any]] | None = None
    """Instead of the loss and `metrics`, all that is measured of a held-out batch in one forward
    pass: `evaluate(model, batch)` returns name -> (sum, count), or a mean over the batch's samples.
    What it calls `loss` is what a plateau schedule follows."""

    def __post_init__(self) -> None:
        for name in ("accumulate", "shuffle_buffer"):
            _check_whole(name, getattr(self, name))
        for names in (("epochs", "steps"), ("batch_size", "tokens_per_batch")):
            self._check_one_of(*names)
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise UsageError(
                f"hotlap.Task(seed={self.seed!r}) is not valid. Expected: an integer from 0 to "
                "2**63 - 1."
            )
        for name in ("clip_norm", "clip_value"):
            _check_positive(name, getattr(self, name))
        if self.schedule_per not in PER:
            raise UsageError(unknown_name(str(self.schedule_per), PER, "the task's schedule_per"))
        for name in ("model", "loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise UsageError(
                    f"the task's {name}={getattr(self, name)!r} is not callable. Expected: a "
                    f"function that is called as `{_CALLS[name]}`."
                )
        if hasattr(self.model, "named_parameters") and not isinstance(self.model, type):
            raise UsageError(
                f"model={type(self.model).__name__}(...) is already a model. Pass a function that "
                f"makes it, as in `model=lambda: {type(self.model).__name__}(...)`, so that it is "
                "made after seeding."
            )
        _check_call("model", self.model, "")
        _check_call("loss", self.loss, "model, batch")
        _check_call("optimizer", self.optimizer, "model")
        check_data("data", self.data)
        if self.held_out is not None:
            check_data("held_out", self.held_out)
        self._check_measures()
        self._check_lengths()
        if self.lengths is not None and self.is_stream:
            raise UsageError(
                f"the task has `lengths`, but its data is a stream ({type(self.data).__name__}), "
                "whose samples are not known in advance. Use a map-style dataset as `data`; or "
                "remove `lengths`, and set `collate=hotlap.pad(...)` and `batch_size`."
            )
        for name in ("transform", "batch_transform"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UsageError(
                    f"the task's {name}={getattr(self, name)!r} is not callable. Expected: a "
                    f"function that is called as `{_CALLS[name]}`, or None."
                )
        if self.steps_per_epoch == 0:
            raise UsageError(
                f"a step takes {self.logical_batch} samples, but the task's data has only "
                f"{self.samples}, and drop_last=True drops an incomplete step. Set drop_last=False "
                f"in the task, or reduce batch_size times accumulate to {self.samples} or less."
            )

    def _check_one_of(self, one: str, other: str) -> None:
        given = [name for name in (one, other) if getattr(self, name) is not None]
        if len(given) != 1:
            raise UsageError(
                f"hotlap.Task() was given {' and '.join(given) or f'neither {one} nor {other}'}. "
                f"Pass exactly one of them: {one}=N or {other}=N."
            )
        _check_whole(given[0], getattr(self, given[0]))

    def _check_measures(self) -> None:
        if self.evaluate is not None and not callable(self.evaluate):
            raise UsageError(
                f"the task's evaluate={self.evaluate!r} is not callable. Expected: a function that "
                "is called as `evaluate(model, batch)`, or None."
            )
        if self.evaluate is not None and self.metrics:
            raise UsageError(
                "hotlap.Task() was given both evaluate and metrics (with "
                f"{', '.join(sorted(self.metrics))}). Remove metrics, and return these values from "
                "evaluate(model, batch) as well; or remove evaluate."
            )
        named = {f"metrics['{name}']": each for name, each in self.metrics.items()}
        for name, measure in {**named, "evaluate": self.evaluate}.items():
            if measure is not None:
                _check_call(name, measure, "model, batch")
        if "loss" in self.metrics:
            raise UsageError(
                "the task's metrics have an entry 'loss', but the loss is measured under that name "
                "anyway. Rename the entry, or remove it."
            )
        if self.held_out is None and (self.metrics or self.evaluate is not None):
            given = f"metrics {sorted(self.metrics)}" if self.metrics else "evaluate"
            raise UsageError(
                f"hotlap.Task() was given {given} without held_out. Pass the dataset to measure on "
                "as well, as in held_out=DATASET."
            )

    def _check_lengths(self) -> None:
        if self.tokens_per_batch is None:
            return
        if self.lengths is None:
            raise UsageError(
                f"the task's tokens_per_batch={self.tokens_per_batch} was given without lengths. "
                "Pass lengths=[...] to hotlap.Task as well, one integer per sample, or "
                "lengths=FUNCTION, a function of a sample that returns one."
            )
        if self.drop_last:
            raise UsageError(
                f"drop_last=True cannot be used with tokens_per_batch={self.tokens_per_batch}, "
                "whose batches have no fixed number of samples. In the task, use batch_size "
                "instead of tokens_per_batch, or drop_last=False."
            )

    @cached_property
    def sample_lengths(self) -> Any:
        """Length of each sample, int64, shape (samples,); None if they are not known."""
        # numpy takes a tenth of a second to import, and most tasks do not need it.
        from hotlap.sequences.lengths import lengths_of

        return None if self.lengths is None else lengths_of(self.lengths, self.data)

    @cached_property
    def budget(self) -> Any:
        """The `hotlap.sequences.lengths.Budget` of a batch; None if samples are counted."""
        if self.tokens_per_batch is None:
            return None
        from hotlap.sequences.lengths import Budget

        return Budget(self.sample_lengths, self.tokens_per_batch, getattr(self.collate, "to", ()))

    @property
    def most_samples(self) -> int:
        """Samples of one batch; the most of one where batches have a budget of tokens."""
        return self.batch_size if self.batch_size is not None else self.budget.most_samples

    @property
    def logical_batch(self) -> int:
        """Samples of one optimizer step; the most of one where batches have a budget of tokens."""
        return self.most_samples * self.accumulate

    @property
    def is_stream(self) -> bool:
        """True if the data set is iterable: its samples come in an order of its own."""
        return is_stream(self.data)

    @property
    def samples(self) -> int | None:
        """Samples of one pass over the data; None for a stream that does not say."""
        return samples_in(self.data)

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of one pass over the data; None for a stream that does not say."""
        if self.budget is not None:
            return math.ceil(len(self.budget.sizes) / self.accumulate)
        samples = self.samples
        if samples is None:
            return None
        whole = samples // self.logical_batch
        return whole if self.drop_last else math.ceil(samples / self.logical_batch)

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run; None for epochs over a stream that does not say."""
        if self.steps is not None:
            return self.steps
        per_epoch = self.steps_per_epoch
        return None if per_epoch is None else per_epoch * (self.epochs or 0)


def _check_whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(
            f"hotlap.Task({name}={value!r}) is not valid. Expected: an integer of 1 or more."
        )


def _check_call(name: str, function: Any, takes: str) -> None:
    """Refuse a function that cannot be called as it will be."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # Some that are written in C do not say.
    try:
        signature.bind(*takes.split(", ") if takes else ())
    except TypeError as error:
        wanted = f"a function of ({takes})" if takes else "a function without arguments"
        raise UsageError(
            f"the task's {name} cannot be called with ({takes}): {error}. Expected: {wanted}."
        ) from error


def _check_positive(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(
            f"hotlap.Task({name}={value!r}) is not valid. Expected: a number above 0, or None."
        )
