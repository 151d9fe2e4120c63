"""An intervention that cuts padding off the batches; it only measures what that would save."""

import math
from collections.abc import Sequence
from typing import Any

from hotlap.diagnosis.interventions_on_steps import BY_NOTE
from hotlap.techniques import FeedTarget, Numerics, Proof, Technique
from hotlap.trace.memory_schema import SequenceBatch
from hotlap.trace.padded_tensors import filled_share, is_fixed, padded_tensor

_LOOKED_AT = 4
"""Batches after which it is known whether all are padded to one length."""


def _cut_batches(target: FeedTarget) -> FeedTarget:
    from hotlap.trace.memory_recorder import arrays_of
    from hotlap.trace.padding import measure_padding
    from hotlap.trace.safe_calls import SafeCalls

    notes = target.notes
    notes.update(is_on=True, cut=0)
    seen: list[SequenceBatch] = []
    safely = SafeCalls()

    def measure(batch: Any) -> list[SequenceBatch]:
        return measure_padding(arrays_of(batch, "batch"), 1, "")

    def wrap(dataset: Any, read: Any) -> Any:
        del dataset

        def fetch(indices: Any) -> Any:
            batch = read(indices)
            if not notes["is_on"]:
                return batch
            now = padded_tensor(safely.call("padding", measure, batch) or [])
            if not now:
                return batch
            seen.extend(now if len(seen) < _LOOKED_AT else ())
            notes["cut"] += 1
            return _cut(batch, now, to_longest=is_fixed(seen))

        return fetch

    target.fetchers.append(wrap)
    return target


def _cut(batch: Any, rows: Sequence[SequenceBatch], *, to_longest: bool) -> Any:
    """Return a batch whose sequences are shorter."""
    from hotlap.nested import map_tensors
    from hotlap.trace.padding import names_of

    row = rows[0]
    kept = row.longest if to_longest else max(1, math.ceil(filled_share(rows) * row.length))
    lengths = [value for name, value in names_of(batch) if name == row.mask]

    def change(tensor: Any) -> Any:
        if any(tensor is each for each in lengths) and tensor.dim() == 1:
            return tensor.clamp(max=kept)
        if tensor.shape[:2] == (row.samples, row.length):
            return tensor[:, :kept].contiguous()
        if tensor.shape[:2] == (row.length, row.samples):
            return tensor[:kept].contiguous()
        return tensor

    return map_tensors(batch, change)


def _proof(target: FeedTarget) -> Proof:
    if not target.notes.get("cut"):
        return Proof("no_effect", "no batch was seen to be padded")
    return Proof("applied", f"{target.notes['cut']} batches were cut")


CUT_BATCHES = Technique(
    name="cut_batches",
    seam="feed",
    numerics=lambda: Numerics.CHANGES,
    why_not=lambda: "it cuts off what sequences are filled with, and some of their ends",
    apply=_cut_batches,
    proof=_proof,
    candidates=lambda: (),
    live=BY_NOTE,
)


PAGES = {
    CUT_BATCHES.name: "Cuts padding off the batches: to the longest sequence of each batch where "
    "all are padded to one length, else to their mean length. A diagnosis races it against the "
    "plain script to measure what padding costs. No plan can hold it: ends of sequences are lost.",
}
"""Name of an intervention -> what `hotlap explain` says of it."""
