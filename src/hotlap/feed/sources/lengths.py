"""Source of a dataset whose samples have known lengths: batches of a token budget."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hotlap.feed.samples.order import epoch_batches
from hotlap.feed.sources.source import Read, Source
from hotlap.sequences.lengths import Budget, bucket, padded_share
from hotlap.sequences.padding import Pad


class LengthSource(Source):
    """Gives the micro-batches of each step, like `Source`, and knows what of them is padding.

    Args:
        dataset: map-style.
        lengths: of its samples, int64, shape (samples,).
        batch: samples of a step, the most where there is a budget.
        budget: of a batch; every batch has `micro` samples if None.
        accumulate: batches of a step, where there is a budget.
        options: as `Source` takes them.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        lengths: np.ndarray,
        budget: Budget | None = None,
        accumulate: int = 1,
        **options: Any,
    ) -> None:
        self.lengths, self.budget, self.accumulate = lengths, budget, accumulate
        self._counted: tuple[int, list[int]] = (-1, [])
        """Epoch, and the samples of each of its steps over all ranks."""
        super().__init__(dataset, batch, **options)
        self.pad = self.collate_fn if isinstance(self.collate_fn, Pad) else None
        self.to = self.pad.to if self.pad is not None else ()
        self.keeps_rows = self.pad is not None
        """True if a batch's rows can be kept one by one, see `ResidentRows`."""

    def __len__(self) -> int:
        if self.budget is None:
            return super().__len__()
        return -(-len(self.budget.sizes) // self.accumulate)

    def epoch(self, number: int, first: int = 0) -> Iterator[list[tuple[int, Any]]]:
        self._begin(number)
        steps = self.steps(number)
        sizes = [len(micro) for micros in steps for micro in micros]
        # Of batches with fewer samples than ranks, the last ranks have none.
        if sizes:
            order = torch.cat([micro for micros in steps for micro in micros])
            self.padding = padded_share(self.lengths[order.numpy()], sizes, self.to)
        given = self._read_in_background(number, first)
        if given is None:
            given = self._read_steps(self._reader(), steps[first:])
        return given if self.transfer is None else self.transfer(given)

    def steps(self, epoch: int) -> list[Sequence[torch.Tensor]]:
        """Return the positions of each micro-batch of each step of an epoch."""
        if self.budget is None:
            return self._split(self._order(epoch))
        batches = epoch_batches(self.budget, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        steps = [
            batches[begin : begin + self.accumulate]
            for begin in range(0, len(batches), self.accumulate)
        ]
        if self.world > 1:
            return [[part for each in step for part in self._split_batch(each)] for step in steps]
        return [[part for each in step for part in each.split(self.micro)] for step in steps]

    def _split_batch(self, batch: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return this rank's share of one batch of a step, in micro-batches."""
        mine = batch.tensor_split(self.world)[self.rank]
        return mine.split(self.micro) if len(mine) else ()

    def count_samples(self, epoch: int, step: int) -> int:
        """Return the samples of a step over all ranks, see `Source.count_samples`."""
        if self.budget is None:
            return super().count_samples(epoch, step)
        if self._counted[0] != epoch:
            batches = epoch_batches(self.budget, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
            sizes = [len(each) for each in batches]
            size = self.accumulate
            self._counted = epoch, [sum(sizes[i : i + size]) for i in range(0, len(sizes), size)]
        return self._counted[1][step]

    def largest(self) -> list[torch.Tensor]:
        """Return the positions of the micro-batches that take most memory: none, one or two.

        They are that with the most tokens, padding included, and that with the longest sample:
        attention grows with the square of the length.
        """
        micros = [micro for micros in self.steps(0) for micro in micros]
        if not micros:
            return []
        longest = [int(self.lengths[micro.numpy()].max()) for micro in micros]
        tokens = [bucket(end, self.to) * len(m) for end, m in zip(longest, micros, strict=True)]
        numbers = range(len(micros))
        most = max(numbers, key=lambda number: (tokens[number], longest[number]))
        widest = max(numbers, key=lambda number: (longest[number], tokens[number]))
        return [micros[number] for number in dict.fromkeys((most, widest))]

    def apply_wraps(self, read: Read) -> Read:
        """Return what gives the batches that techniques keep, and reads the others with `read`."""
        if self.pad is None or "resident" not in self.notes or not self.stages.is_empty:
            return super().apply_wraps(read)
        # Rows of one length can be kept; what was padded too far is cut off once more.
        self.stages.collate = _Wide(self.pad, bucket(int(self.lengths.max()), self.to))
        kept, cut = super().apply_wraps(read), self.pad.cut
        return lambda positions: cut(kept(positions))

    def batch_of(self, positions: torch.Tensor) -> Any:
        """Return the batch of these positions, see `Source.batch_of`."""
        batch = super().batch_of(positions)
        wide = self.stages.collate
        return wide.pad.cut(batch) if isinstance(wide, _Wide) else batch


class _Wide:
    """Collation to one length."""

    def __init__(self, pad: Pad, length: int) -> None:
        self.pad, self.length = pad, length

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self.pad.pad_to(samples, self.length)
