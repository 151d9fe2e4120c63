"""Which tensor of the observed batches is padded, how much of it, and what to do. No torch."""

from collections.abc import Sequence

from hotlap.trace.memory_schema import SequenceBatch


def padded_tensor(batches: Sequence[SequenceBatch]) -> list[SequenceBatch]:
    """Return what was seen of one tensor: of those that are padded, the one with least padding."""
    by_name: dict[str, list[SequenceBatch]] = {}
    for row in batches:
        by_name.setdefault(row.name, []).append(row)
    padded = [rows for rows in by_name.values() if _has_one_value(rows) and not _is_ignored(rows)]
    # What a mask says comes first; labels may leave out more than padding.
    return max(padded, key=lambda rows: (_has_mask(rows), filled_share(rows)), default=[])


def _has_one_value(rows: Sequence[SequenceBatch]) -> bool:
    return len({row.value for row in rows if row.value is not None}) == 1


def _is_ignored(rows: Sequence[SequenceBatch]) -> bool:
    """True for labels that the loss ignores, a prompt's too: no id of a token is negative."""
    return not _has_mask(rows) and any((row.value or 0) < 0 for row in rows)


def _has_mask(rows: Sequence[SequenceBatch]) -> bool:
    return any(row.mask for row in rows)


def filled_share(rows: Sequence[SequenceBatch]) -> float:
    """Return the share of the positions that are no padding."""
    return sum(row.filled for row in rows) / sum(row.samples * row.length for row in rows)


def is_fixed(rows: Sequence[SequenceBatch]) -> bool:
    """True if all batches were padded to one length, which few of them need."""
    positions = sum(row.samples * row.length for row in rows)
    longest = sum(row.samples * row.longest for row in rows)
    return len({row.length for row in rows}) == 1 and longest < positions


def remedy_of(rows: Sequence[SequenceBatch]) -> str:
    """Return what to do about a padded tensor, in words."""
    positions = sum(row.samples * row.length for row in rows)
    longest = sum(row.samples * row.longest for row in rows)
    group = (
        "put sequences of similar length into one batch (sort, or buckets), with a budget of "
        "padded tokens per batch; in a recipe `hotlap.pad` and `tokens_per_batch`"
    )
    if not is_fixed(rows):
        return group
    return (
        f"pad to the longest sequence of each batch, not to {rows[0].length}: {positions:,} "
        f"positions become {longest:,}; then {group}"
    )
