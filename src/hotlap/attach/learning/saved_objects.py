"""What an object that a watched run saves holds: optimizer, schedule or scaler state."""

from collections.abc import Iterator, Mapping
from typing import Any

from hotlap.trace.learning import SavedFacts

_DEPTH = 2


def look_at_saved(value: Any, where: str) -> SavedFacts:
    """Return what of a run's state is in an object that is saved."""
    parts = list(_mappings(value, _DEPTH))
    return SavedFacts(
        where=where,
        optimizer=any("param_groups" in part and "state" in part for part in parts),
        schedule=any("last_epoch" in part or "num_bad_epochs" in part for part in parts),
        scaler=any("growth_factor" in part for part in parts),
    )


def _mappings(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    if not isinstance(value, Mapping):
        return
    yield value
    if depth:
        for inner in value.values():
            yield from _mappings(inner, depth - 1)
