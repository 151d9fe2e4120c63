"""Checks `start` and `custody`: equal initial parameters, and nothing moves between updates.

Between two sampled steps nothing is repeated; what moves there is seen by these two checks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.lab.check import Check

_SHOWN = 3


def check_start(
    plain: Mapping[str, Any], other: Mapping[str, Any], plain_repeats: str | None
) -> Check:
    """Compare what is trained before the first update: values, and whether it takes gradients.

    Args:
        plain: record of a plain run.
        other: record of the run that is judged.
        plain_repeats: what differed between two plain runs, None if nothing.
    """
    theirs, ours = plain.get("start"), other.get("start")
    if not theirs or ours is None:
        return Check("start", "not_made", "no model was seen before the first update")
    names = sorted({*theirs, *ours})
    differ = [name for name in names if theirs.get(name) != ours.get(name)]
    if not differ:
        return Check("start", "passed", f"{len(theirs)} parameters start bit-equal")
    words = f"{_list_some(differ)} of {len(theirs)} parameters do not start as in the plain run"
    if plain_repeats is not None:
        return Check("start", "not_made", f"{words}, and two plain runs differ in {plain_repeats}")
    return Check("start", "failed", words)


def check_custody(plain: Mapping[str, Any], other: Mapping[str, Any]) -> Check:
    """Look at what moved between an update and the next one of the same optimizer.

    A script that moves its weights itself, to clamp them for one, does so at the same updates
    under every plan.
    """
    kinds = {"moved": "weights", "state_moved": "optimizer state"}
    if "carried_moved" in plain:
        kinds["carried_moved"] = "state that the model carries"
    for key, words in kinds.items():
        theirs, ours = plain.get(key), other.get(key)
        if theirs is None or ours is None:
            return Check("custody", "not_made", "changes between updates were not recorded")
        more = sorted(set(ours) - set(theirs))
        less = sorted(set(theirs) - set(ours))
        if more:
            words = f"before {_updates(more)} the {words} changed since the previous one"
            return Check("custody", "failed", f"{words}; not so in the plain run")
        if less:
            words = f"before {_updates(less)} the {words} did not change since the previous one"
            return Check("custody", "failed", f"{words}; not so in the plain run")
    own = len(plain["moved"])
    words = f"each of {len(other['weights'])} updates starts from what the previous one left"
    if own:
        words += f", except {own} before which the script itself changes the weights"
    return Check("custody", "passed", words)


def _updates(numbers: Sequence[int]) -> str:
    return f"{len(numbers)} updates (first: {numbers[0]})"


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
