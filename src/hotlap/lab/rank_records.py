"""Records of several ranks of one run as one record: equal only if each rank is equal."""

from collections.abc import Mapping, Sequence
from typing import Any

_EACH = ("batches", "inputs", "loss_digests", "weights", "untrained")
"""What is a digest for each step, or batch."""


def merge_ranks(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the first rank's record with what the others found beside its own.

    Args:
        first: of the rank that speaks for the run.
        others: of all others, in their order; none if there is one rank.

    >>> merge_ranks({"weights": ["a", "b"]}, [{"weights": ["c", "d"]}])["weights"]
    ['a c', 'b d']
    """
    if not others:
        return dict(first)
    records = (first, *others)
    merged = dict(first)
    for key in _EACH:
        if any(record.get(key) is None for record in records):
            # What is not known of one rank is not known of the run.
            if key in first:
                merged[key] = None if key == "untrained" else []
        else:
            # A loader that works ahead may have handed out one batch more in one of them.
            columns = zip(*(record[key] for record in records), strict=False)
            merged[key] = [" ".join(map(str, row)) for row in columns]
    merged["start"] = {
        f"{number}.{name}": held
        for number, record in enumerate(records)
        for name, held in (record.get("start") or {}).items()
    }
    return {**merged, "ranks": len(records)}
