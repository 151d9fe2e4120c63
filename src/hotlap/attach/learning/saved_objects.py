"""What an object that a watched run saves holds: optimizer, schedule or scaler state."""

from collections.abc import Iterator, Mapping
from typing import Any

from hotlap.trace.learning import SavedFacts

_DEPTH = 2
_MOST = 16
"""Objects in a list that are looked at: of schedules, or optimizers, there are few."""
_OF_SCHEDULES = frozenset({"last_epoch", "num_bad_epochs", "_schedulers"})
"""Keys of the states of schedules, `ChainedScheduler` and `SequentialLR` among them."""


def look_at_saved(value: Any, where: str) -> SavedFacts:
    """Return what of a run's state is in an object that is saved."""
    parts = list(_mappings(value, _DEPTH))
    return SavedFacts(
        where=where,
        optimizer=any("param_groups" in part and "state" in part for part in parts),
        schedule=any(part.keys() & _OF_SCHEDULES for part in parts),
        scaler=any("growth_factor" in part for part in parts),
    )


def _mappings(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
    elif not isinstance(value, list | tuple):
        return
    if depth:
        for inner in value.values() if isinstance(value, Mapping) else value[:_MOST]:
            yield from _mappings(inner, depth - 1)
