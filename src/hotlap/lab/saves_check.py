"""Check `saves`: what the script saves has the weights that the run had."""

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.lab.check import Check, not_compared
from hotlap.trial.not_read import not_read_in

NO_SAVES = "nothing was saved by `torch.save`"


def check_saves(plain: Mapping[str, Any], other: Mapping[str, Any]) -> Check:
    """Compare what was saved by `torch.save`, see `attach.roles.saves`.

    Args:
        plain: record of a plain run.
        other: record of the run that is judged.
    """
    theirs, ours = plain.get("saves", []), other.get("saves", [])
    if theirs is None:
        return Check("saves", "partial", "two plain runs differ in what they save")
    if not theirs and not ours:
        return Check("saves", "passed", NO_SAVES)
    has_its_weights = plain["weights"] == other["weights"]
    if [row[0] for row in theirs] != [row[0] for row in ours]:
        words = f"{len(ours)} objects are saved, {len(theirs)} in the plain run, or at other times"
        # A script may save what is best so far, and rounding decides what that is.
        is_other = has_its_weights or not ours
        return Check("saves", "failed" if is_other else "partial", words)
    if not has_its_weights:
        return _compare_weights(theirs, ours)
    # A loss in evaluation may be rounded otherwise, and be saved.
    has_its_numbers = all(plain.get(key) == other.get(key) for key in ("loss_digests", "evaluated"))
    return _compare_bits(theirs, ours if has_its_numbers else [[*row[:3], None] for row in ours])


def _compare_bits(theirs: Sequence[Any], ours: Sequence[Any]) -> Check:
    for number, (before, now) in enumerate(zip(theirs, ours, strict=True), 1):
        if before[1:3] != now[1:3]:
            words = f"save {number} differs from the plain run's, the weights are bit-equal"
            return Check("saves", "failed", words)
    words = f"{len(theirs)} objects saved by `torch.save` hold what they hold in the plain run"
    numbers = [row[3] for row in theirs]
    # None where they are not to be compared. Others may hold seconds, or bytes, which a plan
    # changes.
    if None in numbers or numbers != [row[3] for row in ours]:
        return Check("saves", "partial", f"{words}, but for names and numbers")
    if kinds := not_read_in(numbers):
        return Check("saves", "partial", f"{words}, {not_compared(kinds)}")
    return Check("saves", "passed", words)


def _compare_weights(theirs: Sequence[Any], ours: Sequence[Any]) -> Check:
    less = [now[1] < before[1] for before, now in zip(theirs, ours, strict=True) if before[1]]
    fewer = sum(less)
    words = (
        f"{len(theirs)} objects saved by `torch.save`; in {fewer} of the {len(less)} that hold "
        "trained weights in the plain run there are fewer, bit by bit"
    )
    if fewer and fewer == len(less):
        return Check("saves", "failed", words)
    # What was best so far may be another one, as rounding decides.
    return Check("saves", "partial" if fewer else "passed", words)
