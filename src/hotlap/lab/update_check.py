"""Judges the updates of sampled steps, and the optimizer's state after them."""

from collections.abc import Mapping, Sequence

from hotlap.lab.check import Check
from hotlap.lab.sampled_steps import SampledSteps, by_optimizer, list_names
from hotlap.lab.updates import beyond_rounding

UPDATE_ONCE = 0.5
"""Relative error of a tensor's update at any one step; one that is left out is off by 1."""
UPDATE_LIMIT = 1e-4
"""Relative error of an update, and of the state after it. Honest ones reach 1e-5; a learning rate
x1.0005 gives 5e-4."""


def check_update(sampled: SampledSteps) -> Check:
    """Is the update the one that the plain run's optimizer makes of this gradient?"""
    rows = [row for row in sampled.rows if row.get("update_error") is not None]
    if not rows:
        return Check("update", "not_made", sampled.problem or "no update could be repeated")
    lost = [
        of[0].get("optimizer", 0)
        for of in by_optimizer(sampled.rows)
        if all(row.get("update_error") is None for row in of)
    ]
    if lost:
        words = f"no update of optimizer {lost[0] + 1} could be repeated"
        return Check("update", "not_made", words)
    errors = [row["update_error"] for row in rows]
    words = f"{beyond_rounding(max(errors))} at {len(errors)} sampled steps"
    if wrong := _wrong_tensors([row.get("updates", {}) for row in rows]):
        words = f"{words}; not the plain optimizer's: {list_names(wrong)}"
        return Check("update", "failed", words)
    states = [
        {name: max(held.values()) for name, held in row.get("states", {}).items() if held}
        for row in rows
    ]
    if wrong := _wrong_tensors(states):
        words = f"{words}; the state after it is not the plain optimizer's: {list_names(wrong)}"
        return Check("update", "failed", words)
    state = "failed" if max(errors) > UPDATE_LIMIT else "passed"
    return Check("update", state, words)


def _wrong_tensors(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of the tensors that are off by too much.

    Args:
        rows: of each sampled step, name -> relative error.
    """
    wrong = []
    for name in dict.fromkeys(name for row in rows for name in row):
        of_tensor = [row[name] for row in rows if name in row]
        # A single drawn row may be that of one element, which rounding moves far.
        second = sorted(of_tensor)[-2:][0]
        if not (second <= UPDATE_LIMIT and max(of_tensor) <= UPDATE_ONCE):
            wrong.append(name)
    return wrong
