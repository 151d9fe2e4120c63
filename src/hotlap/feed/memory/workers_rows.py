"""`WorkersRows`: samples that a script's worker processes read, kept by the process that trains."""

import time
from collections.abc import Callable
from typing import Any

import torch

from hotlap.feed.memory.place import Place
from hotlap.feed.memory.rereading import find_difference, positions_of
from hotlap.feed.memory.resident import REREAD_AT_FIRST, Read, ResidentRows
from hotlap.feed.purity.first_times import FirstTimes
from hotlap.feed.purity.in_child import in_child

_MOST_PASSES = 4
"""Over the data set, in which all of it has to be read by workers."""
_REREAD_S = 1.0
"""Seconds after which no further sample is read again."""
_AT_ONCE = 8
_DIFFERS = "differs: "


class WorkersRows(ResidentRows):
    """The rows of a data set that worker processes read, see `ResidentRows`.

    This process does not read it: what it opened would be shared by workers that are started later.

    Args:
        dataset: the data set.
        max_bytes: refuse, rather than hold more than this together with all other data sets.
        place: where the rows are kept; the host's memory if None.
    """

    behind_workers = True
    # Workers read several at a time, a child reads one.
    rereads_fewer = 4

    def __init__(self, dataset: Any, max_bytes: int, *, place: Place | None = None) -> None:
        self._kept_samples = 0
        """Since an epoch could be served from memory."""
        super().__init__(dataset, max_bytes, place=place)

    def can_serve_epoch(self, dataset: Any, read: Read) -> bool:
        """Look whether a whole epoch can be served from memory, before it begins."""
        if self.refused is not None or not self.is_on:
            return False
        self._call_or_refuse(self._look_again, dataset, read)
        if self.refused is None and not self._held.missing:
            self._call_or_refuse(self._compare_with_others, read)
        if self.refused is None and not self._held.missing and not self._checked:
            self._checked = True
            self._call_or_refuse(self._reread, read, REREAD_AT_FIRST)
        is_whole = self.refused is None and not self._held.missing
        self._kept_samples *= not is_whole
        return is_whole

    def serve_epoch(self, read: Read, finish: Callable[[Any], Any] | None) -> Read:
        """Return what serves an epoch that `can_serve_epoch` has looked at.

        Whatever changes meanwhile, workers that had been started with it would not see.

        Args:
            read: for indices that name no samples.
            finish: done to each batch, None for nothing.
        """
        gather = self._held.gatherer()

        def fetch(indices: Any) -> Any:
            begin = time.perf_counter()
            index = positions_of(indices, self.length)
            batch = read(indices) if index is None else gather(index)
            batch = batch if finish is None else finish(batch)
            self.served += 1
            self._serve_s.add((time.perf_counter() - begin) / len(indices))
            if self._serve_s.count == FirstTimes.ENOUGH:
                self._call_or_refuse(self._compare_times)
            return batch

        return fetch

    def keep_batch(self, batch: Any, indices: Any, waited_s: float) -> None:
        """Keep what workers made of the sampler's `indices`, awaited for `waited_s` seconds."""
        if self.refused is not None or not self.is_on:
            return
        index = self._call_or_refuse(self._positions, indices)
        if index is None:
            return
        self._read_s.add(waited_s / len(index))
        self.read_batches += 1
        if not self._held.missing:
            return
        reason = self._call_or_refuse(self._held.keep, batch, index)
        self._kept_samples += len(index)
        if self._held.missing and self._kept_samples > _MOST_PASSES * self.length:
            # As a sampler with replacement does: keeping costs time in every step.
            reason = f"the sampler does not ask for every sample within {_MOST_PASSES} passes"
        if reason is not None:
            self.refuse(reason)

    def _is_not_faster(self, times: str) -> None:
        # The epoch that is being served goes on: it has no workers that could read.
        self.refuse(f"waiting for the workers takes {times}")

    def _find_difference(self, read: Read, wanted: torch.Tensor) -> str | None:
        def look() -> str | None:
            until = time.monotonic() + _REREAD_S
            for part in wanted.split(_AT_ONCE):
                differs = find_difference(self._held, read, part)
                if differs is not None:
                    return f"{_DIFFERS}{differs}"
                if time.monotonic() > until:
                    break
            return None

        words = in_child(look)
        if words is not None and words.startswith(_DIFFERS):
            return words.removeprefix(_DIFFERS)
        if words is not None:
            self.refuse(f"samples could not be read again: {words}")
        return None
