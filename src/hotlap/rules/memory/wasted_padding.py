"""Batches of sequences hold padding, and so does everything that the model makes of them.

What it sees   tensors of the observed training batches, ids of shape (samples, length) or features
               of shape (samples, length, features), of which a fifth or more is padding, that is
               runs of one value at the end, or at the beginning, of the rows. A mask of zeros and
               ones in the batch is believed, and so are lengths; without them, the runs must differ
               in length and their value must be rare elsewhere, so that dark borders of images and
               one-hot rows do not count.
Why it costs   activations are as long as the padded sequences, and so is the time to compute them.
What to do     pad to the longest sequence of each batch and not to a fixed length; put sequences of
               similar length into one batch (sort, or buckets); give a batch a budget of padded
               tokens instead of a number of samples. In a recipe: `hotlap.pad` and
               `tokens_per_batch`.
Evidence       share of padded positions over the observed batches. The bytes are an estimate: that
               share of the batch's own at the peak, of the tensors of batches, activations and
               temporaries whose size is a multiple of its samples times its length, or of which
               there is one for each position, as a recurrent network makes them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hotlap.rules.memory.record import FLOOR, MemoryFinding, MemoryRule, size
from hotlap.trace.memory_schema import Block, MemoryTrace, SequenceBatch, is_alive
from hotlap.trace.padded_tensors import filled_share, padded_tensor, remedy_of

_LEAST_SHARE = 0.2
"""Of the positions that must be padding."""
_LEAST_LENGTH = 8
"""Below it, a number of equal tensors is a multiple of the length by chance."""
_GROW_WITH_LENGTH = ("batches", "activations", "temporaries")


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find the tensor of the batches that says best how much is padding."""
    rows = padded_tensor(trace.batches)
    if not rows:
        return []
    positions = sum(row.samples * row.length for row in rows)
    share = 1 - sum(row.filled for row in rows) / positions
    cost, scaled = _cost(trace, rows)
    if share < _LEAST_SHARE or cost < FLOOR * trace.peak.bytes:
        return []
    first, count = rows[0], len(rows)
    value = next(row.value for row in rows if row.value is not None)
    mask = next((row.mask for row in rows if row.mask), "")
    said = f"as `{mask}` says" if mask else "seen by its value, as there is no mask"
    return [
        MemoryFinding(
            where=first.where,
            cost_bytes=cost,
            grows=False,
            holder=first.name,
            evidence=(
                f"{share:.0%} of the positions of `{first.name}` ({positions / count:,.0f} in each "
                f"of {count} batches) are padding with {value:g}, {said}; about {size(cost)} at "
                f"the peak, estimated from {size(scaled)} of tensors whose size or number is a "
                "multiple of the length"
            ),
            remedy=remedy_of(rows),
            confidence="medium",
        )
    ]


def _cost(trace: MemoryTrace, rows: Sequence[SequenceBatch]) -> tuple[int, int]:
    """Return the bytes of padding at the peak, and the bytes of what is as long as the batch."""
    at = trace.settled_peak_at
    step, _ = trace.position(at)
    now = [row for row in rows if row.step == step]
    if not now:
        return 0, 0
    positions, length = now[0].samples * now[0].length, now[0].length
    alive = [
        block
        for block in trace.blocks
        if block.kind in _GROW_WITH_LENGTH and is_alive(block, at) and trace.is_counted(block)
    ]
    equal = Counter(map(_maker, alive))
    scaled = sum(
        block.bytes
        for block in alive
        if block.bytes % positions == 0 or _is_one_each(equal[_maker(block)], length)
    )
    return round(scaled * (1 - filled_share(now))), scaled


def _maker(block: Block) -> tuple[Any, ...]:
    return block.where, block.operator, block.kind, block.bytes


def _is_one_each(count: int, length: int) -> bool:
    """True for as many tensors as positions, or a multiple; the first or the last may differ."""
    is_multiple = count >= length - 1 and count % length in (0, 1, length - 1)
    return is_multiple and length >= _LEAST_LENGTH


RULE = MemoryRule(name="wasted_padding", find=find)
