"""Checks `start` and `custody`: equal initial parameters, and nothing moves between updates.

Between two sampled steps nothing is repeated; what moves there is seen by these two checks.
"""

from collections.abc import Collection, Mapping, Sequence
from math import dist, hypot, inf, isfinite
from typing import Any

from hotlap.lab.check import Check
from hotlap.trial.repetition_ways import BUFFER

_SHOWN = 3
OWN_CHANGES = "before which the script itself changes the weights"
_BY_LOSSES = "it may follow from losses that are rounded in another way"
OWN_IN_EVALUATION = "after which the script itself evaluates or saves other weights"
IN_EVALUATION = ("moved_in_evaluation", "restored_in_evaluation", "untrained_in_evaluation")
"""Of a record: None where two plain runs differ in it."""
MOVED_LIMIT = 1e-4
"""Movement of a tensor between two updates, as a share of it, where the script moves others
itself."""
_LATE_LIMIT, _NARROW_LATE_LIMIT = 1e-3, 0.1
"""How far apart the elements of a weight may be that is trained only after others, as a share of
their length; where a plan computes in narrower formats, too."""
_EACH = 0.9
"""Share of the updates from which on something moves between nearly all of them."""
_MOVED_FACTOR = 1.5
"""By which the movement of what it moves may differ."""


def check_start(
    plain: Mapping[str, Any],
    other: Mapping[str, Any],
    plain_repeats: str | None,
    *,
    is_narrow: bool = False,
) -> Check:
    """Compare what there is before the first update: parameters, whether they take gradients, and
    buffers.

    Args:
        plain: record of a plain run.
        other: record of the run that is judged.
        plain_repeats: what differed between two plain runs, None if nothing.
        is_narrow: True for a plan in formats that are narrower than the plain run's.
    """
    theirs, ours = plain.get("start"), other.get("start")
    has_weights = bool(plain.get("first_weights"))
    if not (theirs or has_weights) or ours is None:
        return Check("start", "not_made", "no model was seen before the first update")
    theirs = theirs or {}
    names = sorted({*theirs, *ours})
    not_repeated = [name for name, held in theirs.items() if held is None]
    differ = [name for name in names if theirs.get(name) != ours.get(name)]
    differ = [name for name in differ if name not in not_repeated]
    buffers = sum(held is None or held[1] == BUFFER for held in theirs.values())
    words = f"{len(theirs) - buffers} parameters" + f" and {buffers} buffers" * bool(buffers)
    if not theirs:
        # Tensors that belong to no module: an image, or coefficients.
        words = f"the weights of {len(plain['first_weights'])} optimizers"
    weights = plain.get("first_weights"), other.get("first_weights")
    if None not in weights and weights[0] != weights[1] and not differ:
        differ.append("the weights before the first update")
    states = plain.get("first_state"), other.get("first_state")
    if None not in states and states[0] != states[1]:
        differ.append("the optimizers' state before their first updates")
    if not differ:
        except_ = f", except {_list_some(not_repeated)}" * bool(not_repeated)
        late, late_words = _late_starts(plain, other, is_narrow=is_narrow)
        if late == "not_made" and plain_repeats is not None:
            late = "partial"
        state = "partial" if not_repeated and late == "passed" else late
        return Check("start", state, f"{words} start bit-equal{except_}{late_words}")
    words = f"not as in the plain run: {_list_some(differ)} (of {words})"
    if plain_repeats is not None:
        return Check("start", "not_made", f"{words}, and two plain runs differ in {plain_repeats}")
    return Check("start", "failed", words)


def _late_starts(
    plain: Mapping[str, Any], other: Mapping[str, Any], *, is_narrow: bool
) -> tuple[str, str]:
    """Return state and words on the weights that are trained only after others have been."""
    theirs, ours = plain.get("late_starts") or [], other.get("late_starts") or []
    if not theirs and not ours:
        return "passed", ""
    if [row[:2] for row in theirs] != [row[:2] for row in ours]:
        return "not_made", "; other weights are trained later than in the plain run"
    count = sum(row[1] for row in theirs)
    if [row[2] for row in theirs] == [row[2] for row in ours]:
        return "passed", f", and so do {count} that are trained only later"
    apart = max(
        _apart(a, b)
        for mine, of_plain in zip(ours, theirs, strict=True)
        for a, b in zip(mine[3], of_plain[3], strict=True)
    )
    words = f"; of {count} that are trained only later drawn elements are {apart:.1e} off"
    # What they are made of may have been trained, and rounded, by then.
    limit = _NARROW_LATE_LIMIT if is_narrow else _LATE_LIMIT
    return ("partial" if apart <= limit else "not_made"), words


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    length = hypot(*theirs)
    off = dist(ours, theirs) if len(ours) == len(theirs) else inf
    share = off / length if length else off
    return share if isfinite(share) else inf


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
    state, words = _compare_in_evaluation(plain, other)
    if words:
        return Check("custody", state, words)
    if words := _other_movements(plain.get("movements") or {}, other.get("movements") or {}):
        return Check("custody", "failed", words)
    if words := _other_untrained(plain, other):
        return Check("custody", "failed", f"{words}; not so in the plain run")
    own = len(plain["moved"])
    words = f"each of {len(other['weights'])} updates starts from what the previous one left"
    if own:
        words += f", except {own} {OWN_CHANGES}"
    restored = plain.get("restored_in_evaluation")
    if swapped := len(plain.get("moved_in_evaluation") or ()) + len(restored or ()):
        words += f"; there are {swapped} {OWN_IN_EVALUATION}"
    unknown = ""
    if restored and other.get("restored_in_evaluation") != restored:
        unknown = "; weights are evaluated or saved that other updates have left than in the plain "
        unknown += f"run; {_BY_LOSSES}"
    if any(key in plain and plain[key] is None for key in IN_EVALUATION):
        unknown += "; two plain runs differ in which weights or buffers they evaluate"
    if dropped := [
        name for name, moved in (plain.get("untrained_moved") or {}).items() if not moved
    ]:
        unknown += f"; two plain runs differ in when these change: {_list_some(sorted(dropped))}"
    return Check("custody", "partial" if unknown else "passed", words + unknown)


def _compare_in_evaluation(plain: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str]:
    """Return which weights are evaluated or saved, or which optimizers begin, otherwise than in the
    plain run, in words, and the state that follows; empty words if none."""
    # What rounding or the clock decides to evaluate, or to save, is looked at in one of them only.
    looked = {*plain.get("looked_in_evaluation", ())} & {*other.get("looked_in_evaluation", ())}
    is_rounded = plain["weights"] != other["weights"]
    weights = [plain.get("moved_in_evaluation", ()), other.get("moved_in_evaluation", ())]
    if None not in weights:
        theirs, ours = ({*each} & looked for each in weights)
        if apart := sorted(ours - theirs) or sorted(theirs - ours):
            words = (
                "other weights are evaluated or saved than the update has left"
                if ours - theirs
                else "the weights are evaluated or saved that the update has left"
            )
            words = f"after {_updates(apart)} {words}; not so in the plain run"
            if theirs and is_rounded:
                return "not_made", f"{words}; {_BY_LOSSES}"
            return "failed", words
    restored = [plain.get("restored_in_evaluation", ()), other.get("restored_in_evaluation", ())]
    if None not in restored:
        theirs, ours = ([row for row in each if row[0] in looked] for each in restored)
        if apart := sorted({row[0] for row in theirs} ^ {row[0] for row in ours}):
            words = f"after {_updates(apart)} weights of an earlier update are evaluated or saved"
            words = f"{words} in one of the runs only"
            return ("not_made", f"{words}; {_BY_LOSSES}") if is_rounded else ("failed", words)
        if theirs != ours and not is_rounded:
            return "failed", "weights of other earlier updates are evaluated than in the plain run"
    if words := _other_untrained_in_evaluation(plain, other, looked):
        return "failed", words
    made = [[row[1] for row in run.get("made_anew", ())] for run in (plain, other)]
    if made[0] != made[1]:
        return "failed", (
            f"{len(made[1])} optimizers replace earlier ones, {sum(made[1])} of them begin with a "
            f"state; in the plain run {len(made[0])}, {sum(made[0])} with a state"
        )
    return "passed", ""


def _other_untrained_in_evaluation(
    plain: Mapping[str, Any], other: Mapping[str, Any], looked: Collection[int]
) -> str:
    """Return in words which tensors that no optimizer updates are evaluated with other values than
    updates have left, otherwise than in the plain run; empty if none."""
    untrained = [plain.get("untrained_in_evaluation", {}), other.get("untrained_in_evaluation", {})]
    if None in untrained:
        return ""
    theirs, ours = (
        {name: [at for at in updates if at in looked] for name, updates in each.items()}
        for each in untrained
    )
    # One that hardly moves, in an average, does so in few of the updates that are evaluated.
    moving, moving_in_plain = (
        {name for name, updates in (run.get("untrained_moved") or {}).items() if updates}
        for run in (other, plain)
    )
    rows = [
        *_movements_missing_in(theirs, ours, moving_in_plain),
        *_movements_missing_in(ours, theirs, moving),
    ]
    if not rows:
        return ""
    at, name = min(rows)
    return f"after update {at} {name} is evaluated with other values than in the plain run"


def _other_movements(
    plain: Mapping[str, Sequence[Sequence[float]]], other: Mapping[str, Sequence[Sequence[float]]]
) -> str:
    """Return in words which weights move otherwise where the script moves some of them itself."""
    for key, theirs in plain.items():
        for number, (ours, of_plain) in enumerate(zip(other.get(key, ()), theirs, strict=False)):
            moved, size, share = of_plain
            if not isfinite(moved):
                continue
            least = MOVED_LIMIT * size
            # What a script clamps, for one, may reach its bound at another update.
            apart = least if not moved else least * (0.1 if share >= _EACH else 10)
            if not moved / _MOVED_FACTOR - apart <= ours[0] <= moved * _MOVED_FACTOR + apart:
                return (
                    f"between updates the script changes weights itself, number {number} by "
                    f"{ours[0]:.2e} on average, in the plain run by {moved:.2e}"
                )
    return ""


def _other_untrained(plain: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return in words which tensors that no optimizer updates change otherwise than in the plain
    run; empty if none."""
    theirs, ours = plain.get("untrained_moved"), other.get("untrained_moved")
    if theirs is None or ours is None:
        return ""
    # None where two plain runs differ in one.
    theirs = {name: updates for name, updates in theirs.items() if updates is not None}
    dropped = plain["untrained_moved"].keys() - theirs.keys()
    ours = {name: updates for name, updates in ours.items() if name not in dropped}
    more, less = _movements_missing_in(theirs, ours), _movements_missing_in(ours, theirs)
    for rows, words in ((more, "changes"), (less, "does not change")):
        if rows:
            at, name = min(rows)
            return f"after update {at} and before the next forward {name} {words}"
    # A step may change what it does by a value, which rounding may change.
    more = sorted(set(other["untrained_changed"]) - set(plain["untrained_changed"]))
    return f"steps change {_list_some(more)}" if more else ""


def _movements_missing_in(
    some: Mapping[str, Sequence[int]],
    others: Mapping[str, Sequence[int]],
    moving_elsewhere: Collection[str] = (),
) -> list[tuple[int, str]]:
    """Return update and name of the movements in `others` that are not in `some`.

    One that is small enough is rounded away, as of a bias before batch norm in an averaged copy: it
    does not count where other tensors of its module move, if the tensor itself moves elsewhere.
    Trained modules, whose places are numbers, are no such copies.

    Args:
        some: updates at which a tensor moves, by name.
        others: likewise, in the other run.
        moving_elsewhere: names of tensors of `some` that move at updates which are not in it.
    """
    rows = []
    for name, updates in others.items():
        place = name.partition(".")[0]
        alike = (at for other, at in some.items() if other.partition(".")[0] == place)
        moving = {*some.get(name, ())}
        if (moving or name in moving_elsewhere) and not place.isdigit():
            moving |= {update for at in alike for update in at}
        rows += [(update, name) for update in updates if update not in moving]
    return rows


def _updates(numbers: Sequence[int]) -> str:
    return f"{len(numbers)} updates (first: {numbers[0]})"


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
