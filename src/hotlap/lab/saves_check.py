"""Check `saves`: what the script saves has the weights that the run had."""

from collections.abc import Mapping
from typing import Any

from hotlap.lab.check import Check

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
        return Check("saves", "failed" if has_its_weights else "partial", words)
    rows = [(number, *pair) for number, pair in enumerate(zip(theirs, ours, strict=True), 1)]
    for number, before, now in rows:
        if before[1] and not now[1]:
            words = (
                f"save {number} holds no weight of the model bit by bit; not so in the plain run"
            )
            return Check("saves", "failed", words)
        if has_its_weights and before[2] != now[2]:
            words = f"save {number} differs from the plain run's, the weights are bit-equal"
            return Check("saves", "failed", words)
    words = f"{len(rows)} objects saved by `torch.save` "
    if has_its_weights:
        return Check("saves", "passed", f"{words}hold the tensors that they hold in the plain run")
    words += "hold weights of the model, bit by bit, where they do in the plain run"
    return Check("saves", "passed", words)
