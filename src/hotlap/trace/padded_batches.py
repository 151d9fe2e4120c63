"""`PaddedBatches`: looks at some training batches, while no step is timed, for padding."""

from types import FrameType
from typing import Any

from hotlap.task.facts import PaddingFacts
from hotlap.trace import frames
from hotlap.trace.memory_recorder import arrays_of
from hotlap.trace.memory_schema import SequenceBatch
from hotlap.trace.padded_tensors import filled_share, is_fixed, padded_tensor, remedy_of
from hotlap.trace.padding import measure_padding
from hotlap.trace.safe_calls import SafeCalls

_ENOUGH = 12
_PADDING = "padding"
"""Name of a watcher, see `SafeCalls`."""


class PaddedBatches:
    """What was seen of the training batches; to fail in that is no matter of the script."""

    def __init__(self) -> None:
        self._looked = 0
        self._rows: list[SequenceBatch] = []
        self._safely = SafeCalls()

    def look(self, batch: Any, frame: FrameType | None) -> None:
        """Look at a batch, if not enough were.

        Args:
            batch: as the loader gives it.
            frame: what asked for it.
        """
        if self._looked < _ENOUGH:
            self._looked += 1
            self._rows += self._safely.call(_PADDING, self._measure, batch, frame) or []

    def _measure(self, batch: Any, frame: FrameType | None) -> list[SequenceBatch]:
        arrays = arrays_of(batch, "batch")
        return measure_padding(arrays, self._looked, frames.location_of(frame))

    def facts(self) -> PaddingFacts | None:
        """Return how much is padding, None if nothing is."""
        rows = padded_tensor(self._rows)
        if self._safely.failed or not rows:
            return None
        positions = sum(row.samples * row.length for row in rows)
        filled = filled_share(rows)
        kept = sum(row.samples * row.longest for row in rows) / positions
        return PaddingFacts(
            name=rows[0].name,
            where=rows[0].where,
            share=1 - filled,
            avoidable=1 - (kept if is_fixed(rows) else filled),
            length=sum(row.length for row in rows) / len(rows),
            remedy=remedy_of(rows),
        )

    def problems(self) -> tuple[str, ...]:
        """Return a sentence if to look at a batch has failed."""
        return self._safely.problems()
