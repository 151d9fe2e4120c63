"""Checks of a verdict: buffers, averaged copies of the model (EMA), forwards in evaluation."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Any

from hotlap.lab.check import Check, not_compared
from hotlap.lab.sampled_steps import GRADIENT_FACTOR, NARROW_LIMIT, SampledSteps
from hotlap.trial.not_read import not_read_in
from hotlap.trial.repetition_ways import CARRIED_INPUT, EVALUATIONS

BUFFER_LIMIT = 0.02
"""Error of what a step changes in a buffer, as a share of that; in formats as wide as the plain
run's."""
OUTPUT_LIMIT = 1e-4
"""Error of what a model gives in evaluation, as a share of its length; likewise."""
NO_BUFFERS = "the model has no buffers"
NO_AVERAGES = "no copy of the model was found"
AVERAGE_LIMIT = 1e-3
"""By how much of itself a share may differ by which an average moves towards the weights."""
_ONCE = 0.5
"""Share of a change by which a single one must not be off: one that is left out is off by 1."""
_NOISY = 0.05
"""Error of the plain repetition from which on nothing can be said."""
_DOUBTS = 8.0
_FEW, _FEW_SHARE = 3, 0.05
"""Movements that may be off somewhat, and their share of all."""
_OFTEN, _OFTEN_SHARE = 5, 0.05
"""Movements, and the share of the updates, from which on a copy is more than a snapshot."""
_WHOLE = 1e-3
"""How far from all of the way a copy may be that is set to the weights."""

Record = Mapping[str, Any]


def check_buffers(sampled: SampledSteps, *, is_narrow: bool) -> Check:
    """Do sampled steps change the buffers as their repetition does?"""
    rows = [row["buffers"] for row in sampled.rows if row.get("buffers") is not None]
    if not rows:
        return Check("buffers", "not_made", sampled.problem or "no step could be repeated")
    names = list(dict.fromkeys(name for row in rows for name in row))
    wrong, untold, worst = [], [], 0.0
    for name in names:
        errors = [row[name]["error"] for row in rows if name in row]
        plain = median(row[name]["plain_error"] for row in rows if name in row)
        limit = NARROW_LIMIT if is_narrow else max(BUFFER_LIMIT, GRADIENT_FACTOR * plain)
        found = median(errors)
        worst = max(worst, found)
        if not plain <= _NOISY:
            untold.append(name)
        elif not (found <= limit and max(errors) <= max(limit, _ONCE)):
            wrong.append(name)
    has_state = any(name.startswith(CARRIED_INPUT) for name in names)
    what = "buffers and carried inputs" if has_state else "buffers"
    words = f"{len(names)} {what}, error at most {worst:.1e} of their change in {len(rows)} steps"
    if wrong:
        return Check("buffers", "failed", f"{words}; different: {_list_names(wrong)}")
    if untold:
        return Check("buffers", "partial", f"{words}; not repeatable: {_list_names(untold)}")
    return Check("buffers", "passed", words if names else NO_BUFFERS)


def check_averages(plain: Record, other: Record) -> Check:
    """Do copies of the model move towards its weights as they do in the plain run?"""
    ours, theirs = other.get("averages"), plain.get("averages")
    if theirs is None:
        return Check("averages", "partial", "two plain runs differ in the copies of the model")
    has_its_weights = bool(plain.get("weights")) and plain["weights"] == other["weights"]
    apart = 0
    if ours is not None and not has_its_weights:
        ours, theirs, apart = _without_other_snapshots(ours, theirs)
    if ours is None or _starts_and_lengths(ours) != _starts_and_lengths(theirs):
        words = f"{len(ours or ())} copies of the model, {len(theirs)} in the plain run"
        return Check("averages", "failed", f"{words}, or made at different updates")
    left = list(ours)
    for number, plain_copy in enumerate(theirs, 1):
        # The order in which they are found says nothing.
        alike = [
            copy
            for copy in left
            if _starts_and_lengths([copy]) == _starts_and_lengths([plain_copy])
        ]
        copy = min(alike, key=lambda copy: len(_updates_that_differ(copy, plain_copy)))
        left.remove(copy)
        if _starts_otherwise(copy, plain_copy):
            words = f"copy {number} of the model does not start as in the plain run"
            return Check("averages", "failed", words)
        ways = {"weights": (copy, plain_copy)}
        buffers = copy.get("buffers"), plain_copy.get("buffers")
        # Those of a teacher in training mode are what its own forwards make of them.
        if buffers[0] and buffers[1] and _follows(buffers[1]):
            ways["buffers"] = buffers[0], buffers[1]
        for what, (of_ours, of_plain) in ways.items():
            if words := _difference(of_ours, of_plain, copy["since"]):
                words = f"the {what} of copy {number} of the model differ at {words}"
                return Check("averages", "failed", words)
    if apart:
        words = f"{apart} copies that are set to the weights at times were set at other updates"
        return Check("averages", "partial", f"{words}, as of the best so far")
    if not theirs:
        return Check("averages", "passed", NO_AVERAGES)
    if has_its_weights and _digests(ours) != _digests(theirs):
        # Drawn elements say nothing of a single other one, nor of buffers.
        words = "copies of the model have other bits than in the plain run, of the same weights"
        return Check("averages", "failed", words)
    words = f"{len(theirs)} copies of the model move as in the plain run at each update"
    return Check("averages", "passed", words, limit=_largest_limit(ours))


def _largest_limit(copies: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest share of a movement that a copy may be off by in most of its movements."""
    found = [AVERAGE_LIMIT]
    for copy in copies:
        shares = [
            AVERAGE_LIMIT + 2 * _DOUBTS * doubt / abs(moved)
            for moved, doubt in zip(copy["moved"], copy["doubt"], strict=True)
            if moved and isfinite(moved) and isfinite(doubt)
        ]
        found += [median(shares)] if shares else []
    return max(found)


def _difference(copy: Mapping[str, Any], plain: Mapping[str, Any], since: int) -> str:
    """Return in words where a copy moves otherwise than in the plain run, empty if nowhere."""
    off = _updates_that_differ(copy, plain)
    few = min(_FEW, _FEW_SHARE * sum(moved != 0 for moved in plain["moved"]))
    if len(off) <= few and not any(_is_far(copy, plain, at) for at in off):
        return ""
    return (
        f"{len(off)} updates: before update {since + off[0]} they move "
        f"{copy['moved'][off[0]]:.4g} of their distance to the model's, in the plain run "
        f"{plain['moved'][off[0]]:.4g}"
    )


def _follows(way: Mapping[str, Any]) -> bool:
    """Return whether something moves towards the model's, and nowhere else."""
    pairs = zip(way["rest"], way["doubt"], strict=True)
    return all(rest <= AVERAGE_LIMIT + _DOUBTS * doubt for rest, doubt in pairs)


def _starts_otherwise(copy: Mapping[str, Any], plain: Mapping[str, Any]) -> bool:
    ours, theirs = copy.get("start"), plain.get("start")
    if not ours or not theirs:
        return False
    return ours[0] == theirs[0] and ours[1] != theirs[1]


def _starts_and_lengths(copies: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    return sorted((copy["since"], len(copy["moved"])) for copy in copies)


def _without_other_snapshots(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], int]:
    """Return the copies of both runs without snapshots that only one of them has, and how many.

    Which weights are the best so far may be decided otherwise once these are rounded otherwise.
    """
    left, kept = list(map(_snapshot_of, ours)), []
    for copy in theirs:
        made = _snapshot_of(copy)
        if made is None or made in left:
            kept.append(copy)
        if made in left:
            left.remove(made)
    own = list(ours)
    for made in filter(None, left):
        own.remove(next(copy for copy in own if _snapshot_of(copy) == made))
    return own, kept, max(len(ours) - len(own), len(theirs) - len(kept))


def _snapshot_of(copy: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return when a copy was made and set to the weights, if that is all that it does, at times."""
    moves = [at for at, moved in enumerate(copy["moved"]) if moved != 0]
    is_often = len(moves) >= max(_OFTEN, _OFTEN_SHARE * len(copy["moved"]))
    if is_often or any(abs(copy["moved"][at] - 1) > _WHOLE for at in moves):
        return None
    if any(not copy["rest"][at] <= _WHOLE + _DOUBTS * copy["doubt"][at] for at in moves):
        return None
    return (copy["since"], *moves)


def _digests(copies: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the digests of each copy at each update; the order of copies says nothing."""
    return sorted(copy.get("digests", []) for copy in copies)


def _is_far(copy: Mapping[str, Any], plain: Mapping[str, Any], at: int) -> bool:
    """True if a movement is another one altogether: one that was left out, for one."""
    if not isfinite(copy["rest"][at]):
        return True
    theirs = plain["moved"][at]
    doubt = _DOUBTS * (copy["doubt"][at] + plain["doubt"][at])
    strayed = not copy["rest"][at] <= plain["rest"][at] + _ONCE + doubt
    return strayed or not abs(copy["moved"][at] - theirs) <= _ONCE * abs(theirs) + doubt


def _updates_that_differ(copy: Mapping[str, Any], plain: Mapping[str, Any]) -> list[int]:
    found = []
    for at, (ours, theirs) in enumerate(zip(copy["moved"], plain["moved"], strict=False)):
        if not all(map(isfinite, (theirs, plain["doubt"][at], plain["rest"][at]))):
            # The plain run's own weights are no numbers there.
            continue
        doubt = _DOUBTS * (copy["doubt"][at] + plain["doubt"][at])
        limit = AVERAGE_LIMIT * abs(theirs) + doubt
        strayed = not copy["rest"][at] <= plain["rest"][at] + AVERAGE_LIMIT + doubt
        if not abs(ours - theirs) <= limit or strayed:
            found.append(at)
    return found


def check_evaluation(
    plain: Record,
    other: Record,
    sampled: SampledSteps | None,
    *,
    is_narrow: bool,
    claims_exact: bool = False,
) -> Check:
    """Is the same evaluated, at the same times, with the same outcome at equal weights?

    Args:
        plain: record of a plain run.
        other: record of the run that is judged.
        sampled: forwards of that run, repeated; None where none were.
        is_narrow: the plan computes in formats that are narrower than the plain run's.
        claims_exact: the plan claims to leave every bit as it was.
    """
    in_training = _check_in_training(plain, other, claims_exact)
    if in_training.state == "failed":
        return in_training
    found = _check_evaluated(plain, other, sampled, is_narrow, claims_exact)
    if in_training.state == "passed" or found.state in ("failed", "not_made"):
        return found
    return Check("evaluation", "partial", f"{found.evidence}; {in_training.evidence}")


def _check_in_training(plain: Record, other: Record, claims_exact: bool) -> Check:
    """Compare forwards without gradients in training mode.

    Most of them are part of a step, a target network's for one, and repeated with it. By themselves
    they can only be compared bit by bit, for a plan that claims that, while the weights are equal.
    """
    theirs, ours = plain.get("without_gradients", ()), other.get("without_gradients", ())
    if theirs is None:
        words = "two plain runs differ in forwards without gradients in training mode"
        return Check("evaluation", "partial", words)
    if len(ours) != len(theirs):
        words = f"{len(ours)} forwards without gradients in training mode instead of {len(theirs)}"
        return Check("evaluation", "failed", words)
    pairs = zip(plain.get("weights", ()), other.get("weights", ()), strict=False)
    equal = next((at for at, (left, right) in enumerate(pairs) if left != right), None)
    rows = [
        (before, now)
        for before, now in zip(theirs, ours, strict=True)
        if before == now or (claims_exact and (equal is None or before[1] <= equal))
    ]
    if any(before != now for before, now in rows):
        words = "forwards without gradients in training mode give something else than in the"
        return Check("evaluation", "failed", f"{words} plain run, of the same weights")
    if len(rows) < len(theirs):
        words = f"what {len(theirs) - len(rows)} forwards without gradients in training mode give"
        return Check("evaluation", "partial", f"{words} is not compared by itself")
    return Check("evaluation", "passed", "")


def _check_evaluated(
    plain: Record,
    other: Record,
    sampled: SampledSteps | None,
    is_narrow: bool,
    claims_exact: bool,
) -> Check:
    ours, theirs = other.get("evaluated"), plain.get("evaluated")
    if theirs is None:
        return Check("evaluation", "partial", "two plain runs differ in their evaluation")
    if ours is None:
        return Check("evaluation", "not_made", "evaluation was not recorded")
    if [row[:2] for row in ours] != [row[:2] for row in theirs]:
        words = f"{len(ours)} forwards instead of {len(theirs)}, or at different updates"
        return Check("evaluation", "failed", words)
    if not theirs:
        return Check("evaluation", "partial", "no evaluation within the horizon")
    if [row[2:] for row in ours] == [row[2:] for row in theirs]:
        return check_equal_evaluation(plain)
    others = [n for n, row in enumerate(ours) if row[2] != theirs[n][2]]
    for fixed, state in (
        ({*plain.get("evaluated_batches", ())}, "failed"),
        # A model that is given its own choices, as in decoding, may come to the same ones again.
        (_evaluated_again(plain), "not_made"),
    ):
        if wrong := [n for n in others if n in fixed]:
            words = f"the inputs of {len(wrong)} forwards differ from the plain run's"
            return Check("evaluation", state, f"{words} (first: forward {wrong[0] + 1})")
    first = next(n for n, row in enumerate(ours) if row[2:] != theirs[n][2:])
    before = theirs[first][1]
    # A script's model may be evaluated on what it has computed itself.
    must_read = plain.get("reads_fixed") or _equal_weights(plain, other, before)
    if must_read and ours[first][2] != theirs[first][2]:
        words = f"the input of forward {first + 1} differs from the plain run's"
        return Check("evaluation", "failed", words)
    if claims_exact and _equal_weights(plain, other, before):
        words = f"the weights are bit-equal at forward {first + 1}, its outcome is not"
        return Check("evaluation", "failed", words)
    repeated = sampled or SampledSteps(problem="no forward was repeated")
    found = check_outputs(repeated, is_narrow=is_narrow)
    asked, made = min(EVALUATIONS, len(ours)), len(repeated.evaluations)
    words = ""
    if made < asked and not plain.get("reads_fixed"):
        words = f"; {asked - made} of {asked} sampled forwards could not be repeated"
    if others:
        words += (
            f"; the inputs of {len(others)} of {len(ours)} forwards are others than in the plain "
            "run, as of what the script may have computed from the weights"
        )
    if found.state != "passed" or not words:
        return found
    return Check("evaluation", "partial", f"{found.evidence}{words}")


def _evaluated_again(plain: Record) -> set[int]:
    """Return the forwards, from 0, whose inputs were evaluated with other weights as well: they
    hardly follow from these."""
    rows = plain["evaluated"]
    at: dict[Any, set[int]] = {}
    for row in rows:
        at.setdefault(row[2], set()).add(row[1])
    return {number for number, row in enumerate(rows) if len(at[row[2]]) > 1}


def check_equal_evaluation(plain: Record) -> Check:
    """Could all be read of evaluations that are bit-equal to the plain run's?"""
    rows = plain.get("evaluated") or []
    words = f"inputs and outputs of {len(rows)} forwards are bit-equal to the plain run's"
    if kinds := not_read_in(each for row in rows for each in row[2:]):
        return Check("evaluation", "partial", f"{words}, {not_compared(kinds)}")
    return Check("evaluation", "passed", words)


def _equal_weights(plain: Record, other: Record, updates: int) -> bool:
    return plain["weights"][:updates] == other["weights"][:updates]


def check_outputs(sampled: SampledSteps, *, is_narrow: bool) -> Check:
    """Does what was evaluated come out the same when it is repeated with the same weights?"""
    rows = sampled.evaluations
    if not rows:
        why = sampled.problem or "no forward was repeated"
        return Check("evaluation", "not_made", f"not bit-equal to the plain run: {why}")
    error = max(row["error"] for row in rows)
    plain_error = max(row["plain_error"] for row in rows)
    words = (
        f"{len(rows)} forwards repeated with the same weights: error at most {error:.1e} of the "
        f"output, the plain run's own {plain_error:.1e}"
    )
    if not plain_error <= _NOISY:
        return Check("evaluation", "not_made", words)
    wrong = any(not row["error"] <= output_limit(row, is_narrow) for row in rows)
    return Check("evaluation", "failed" if wrong else "passed", words)


def output_limit(row: Mapping[str, Any], is_narrow: bool) -> float:
    """Return the error from which on an output in evaluation is not the plain run's, rounded."""
    if is_narrow:
        return NARROW_LIMIT
    return max(row.get("limit", OUTPUT_LIMIT), GRADIENT_FACTOR * row["plain_error"])


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more
