"""Checks of two whole runs: batches, hyperparameters, weights bit by bit, losses, and seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev, stdev
from typing import Any

from hotlap.lab.check import Check, not_compared
from hotlap.trial.not_read import not_read_in
from hotlap.trial.protocol import UNREAD

LOSS_SIGMAS = 4.0
_FEW_LOSSES = 8
_LOSS_LIMIT = 1e-4
"""Of itself: how far each of a few losses may be from the plain run's."""
_LEAST_LOSS = 0.01
"""Of the largest: losses that are smaller are compared with as much."""
SEEDS_MARGIN = 0.01
"""How much larger the loss may be than the plain run's, as a share of the loss at the start."""
LEAST_SEEDS = 3
_START = 8
"""Losses of each seed that tell where it began."""
_ONE_SIDED_T = {3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}
"""Number of seeds -> 95 % point of Student's t with one degree of freedom less."""

Record = Mapping[str, Any]
"""What a role has recorded of a whole run."""


@dataclass(frozen=True)
class SeedLosses:
    """Losses of the plain run and of the plan, from the same seeds, step by step."""

    plain: Sequence[Sequence[float]]
    other: Sequence[Sequence[float]]


def first_difference(left: Sequence[Any], right: Sequence[Any]) -> int | None:
    """Return the first position at which two sequences differ, None if they are equal."""
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def check_batches(plain: Record, other: Record, plain_repeats: str | None) -> Check:
    """Check that the model gets the plain run's batches, by their digests."""
    if plain_repeats is not None and plain_repeats.startswith("batches"):
        return Check("batches", "not_made", f"two plain runs differ in their {plain_repeats}")
    for key, words in (("batches", "batch"), ("inputs", "model input")):
        # A loader that works ahead may have handed out one batch more when the run was stopped.
        count = min(len(plain[key]), len(other[key]))
        if abs(len(plain[key]) - len(other[key])) > 1:
            words = f"{len(other[key])} instead of {len(plain[key])} {words}s"
            return Check("batches", "failed", f"{words} in the same number of steps")
        position = first_difference(plain[key][:count], other[key][:count])
        if position is not None:
            words = f"{words} {position + 1} differs from the plain run's"
            if key == "inputs" and _may_follow_from_weights(plain, other, position):
                words += ", the batches do not: it may have been computed from the weights"
                return Check("batches", "not_made", words)
            return Check("batches", "failed", words)
    if not plain["batches"] and not plain["inputs"]:
        return Check("batches", "not_made", "no batch was recorded")
    digests = (*plain["batches"], *plain["inputs"])
    unread = [each for each in digests if UNREAD in each]
    if unread:
        words = f"{len(unread)} batches or model inputs could not be read"
        return Check("batches", "not_made", f"{words} ({unread[0].partition(UNREAD)[2]})")
    what = "batches" if plain["batches"] else "model inputs"
    words = f"{len(plain['batches']) or len(digests)} {what} have equal digests"
    if kinds := not_read_in(digests):
        return Check("batches", "partial", f"{words}, {not_compared(kinds)}")
    return Check("batches", "passed", words)


def _may_follow_from_weights(plain: Record, other: Record, position: int) -> bool:
    """True if the weights had been rounded in another way before this input was made."""
    updates = plain.get("inputs_at")
    if not updates or not plain["batches"]:
        return False
    before = updates[position]
    return plain["weights"][:before] != other["weights"][:before]


def check_hyperparameters(plain: Record, other: Record) -> Check:
    """Check the optimizers' hyperparameters, and the number of updates, at each step."""
    position = first_difference(plain["hyperparameters"], other["hyperparameters"])
    if position is not None:
        words = _changed_number(plain["hyperparameters"], other["hyperparameters"], position)
        if _may_follow_from_losses(plain, other, position):
            words += "; the script may have decided it by a loss, of weights rounded otherwise"
            return Check("hyperparameters", "not_made", words)
        return Check("hyperparameters", "failed", words)
    still = _idle_updates(other["weights"])
    plain_still = _idle_updates(plain["weights"])
    if still != plain_still:
        step = next(iter(sorted(set(still) ^ set(plain_still))))
        words = f"{len(still)} updates moved no weight, {len(plain_still)} in the plain run"
        return Check("hyperparameters", "failed", f"{words} (first: step {step})")
    count = len(other["hyperparameters"])
    words = f"{count} updates with equal hyperparameters, each moved the weights"
    return Check("hyperparameters", "passed", words)


def _may_follow_from_losses(plain: Record, other: Record, position: int) -> bool:
    """True if weights were rounded otherwise by then, and only when learning rates change, or when
    the run ends, is another: as where a held-out loss decides it."""
    if plain["weights"][:position] == other["weights"][:position]:
        return False
    theirs, ours = plain["hyperparameters"], other["hyperparameters"]
    if position >= min(len(theirs), len(ours)):
        return plain.get("steps") != other.get("steps")
    rates = [
        {tuple(group.get("lr") for group in json.loads(line)) for line in run}
        for run in (theirs, ours)
    ]
    others = [
        [{k: v for k, v in group.items() if k != "lr"} for group in json.loads(run[position])]
        for run in (theirs, ours)
    ]
    return others[0] == others[1] and len(rates[0]) > 1 and rates[1] <= rates[0]


def _idle_updates(weights: Sequence[str]) -> list[int]:
    return [step + 1 for step in range(1, len(weights)) if weights[step] == weights[step - 1]]


def _changed_number(plain: Sequence[str], other: Sequence[str], position: int) -> str:
    if position >= len(plain) or position >= len(other):
        return f"{len(other)} updates instead of {len(plain)}"
    before, after = json.loads(plain[position]), json.loads(other[position])
    for old, new in zip(before, after, strict=False):
        for key in old:
            if old[key] != new.get(key):
                return (
                    f"at step {position + 1} {key} is {new.get(key)}, in the plain run {old[key]}"
                )
    return f"at step {position + 1} the parameter groups differ"


ALL_BITS, BUT_BUFFERS = "losses, weights and buffers", "losses and weights"
"""What check `bits` has compared, with which its evidence begins."""


def check_bits(plain: Record, other: Record, plain_repeats: str | None) -> Check:
    """Check that losses, weights, buffers and what evaluation gives are equal bit for bit."""
    if plain_repeats is not None:
        return Check("bits", "not_made", f"two plain runs differ in their {plain_repeats}")
    kinds = (
        ("loss_digests", "loss"),
        ("weights", "weights"),
        ("untrained", "buffers and what else no optimizer updates"),
        ("evaluated", "evaluation"),
        ("without_gradients", "forwards without gradients in training mode"),
    )
    for key, words in kinds:
        # None where two plain runs differ in it.
        theirs = plain.get(key)
        position = None if theirs is None else first_difference(theirs, other.get(key, ()))
        if position is not None:
            return Check("bits", "failed", f"{words} differ from step {position + 1} on")
    count = len(plain["weights"])
    compared = BUT_BUFFERS if plain.get("untrained") is None else ALL_BITS
    words = f"{compared} bit-equal to the plain run's after each of {count} steps"
    words += f", in each of {plain['ranks']} ranks" if "ranks" in plain else ""
    return Check("bits", "passed", words)


def check_losses(plain: Record, other: Record) -> Check:
    """Check that the mean of the later half of the losses is within its noise.

    A few losses tell no noise, and the few updates between them amplify no rounding: each of them
    must be nearly the plain run's.
    """
    count = min(len(plain["losses"]), len(other["losses"]))
    if count < _FEW_LOSSES:
        return _check_each_loss(plain, other)
    half = slice(count // 2, count)
    ours, theirs = other["losses"][half], plain["losses"][half]
    ended = _end_of_finite([theirs], [ours])
    if ended is not None:
        return Check("losses", *ended)
    noise = pstdev(theirs) / len(theirs) ** 0.5
    shift = fmean(ours) - fmean(theirs)
    words = f"mean of the second half off by {shift:+.1e}, noise of that mean {noise:.1e}"
    state = "failed" if abs(shift) > LOSS_SIGMAS * noise + 1e-6 * abs(fmean(theirs)) else "passed"
    limit = LOSS_SIGMAS * noise / abs(fmean(theirs)) if fmean(theirs) else None
    return Check("losses", state, words, limit=limit)


def _check_each_loss(plain: Record, other: Record) -> Check:
    theirs, ours = plain["losses"], other["losses"]
    count, words = len(ours), f"only {len(ours)} losses were recorded"
    # Of many updates a few losses say little, and one that was computed before any says nothing.
    if count < 2 or count != len(theirs) or len(plain["weights"]) > _FEW_LOSSES:
        return Check("losses", "not_made", words)
    ended = _end_of_finite([theirs], [ours])
    if ended is not None:
        return Check("losses", *ended)
    least = _LEAST_LOSS * max(map(abs, theirs))
    apart = [abs(a - b) / (max(abs(a), least) or 1.0) for a, b in zip(theirs, ours, strict=True)]
    state = "passed" if max(apart) <= _LOSS_LIMIT else "not_made"
    words = f"each of {count} losses is the plain run's within {max(apart):.1e} of itself"
    return Check("losses", state, words)


def check_seeds(seeds: SeedLosses | None) -> Check:
    """Is the plan's loss no larger than the plain run's, by a margin that was there before?"""
    if seeds is None:
        return Check("seeds", "not_made", "only one seed was trained")
    count = len(seeds.plain)
    lengths = {len(row) for row in (*seeds.plain, *seeds.other)}
    if count < LEAST_SEEDS or min(lengths) < 2 * _START:
        least = f"at least {LEAST_SEEDS} of {2 * _START} are needed"
        words = f"{count} seeds of {min(lengths)} steps; {least}"
        return Check("seeds", "not_made", words)
    ended = _end_of_finite(seeds.plain, seeds.other)
    if ended is not None:
        return Check("seeds", *ended)
    margin = SEEDS_MARGIN * abs(fmean(fmean(row[:_START]) for row in seeds.plain))
    worse = [
        _mean_of_second_half(other) - _mean_of_second_half(plain)
        for plain, other in zip(seeds.plain, seeds.other, strict=True)
    ]
    mean = fmean(worse)
    doubt = _ONE_SIDED_T.get(count, 1.86) * stdev(worse) / count**0.5
    words = (
        f"loss {mean:+.1e} +- {doubt:.1e} against the plain run's over {count} seeds of "
        f"{min(lengths)} steps, margin {margin:.1e}"
    )
    if mean - doubt > margin:
        return Check("seeds", "failed", words)
    if mean + doubt > margin:
        return Check("seeds", "not_made", f"{words}: too few seeds to decide")
    return Check("seeds", "passed", words)


def _end_of_finite(
    plain: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[str, str] | None:
    """Return state and words of a check of losses that are not all finite, None if they are."""
    pairs = [pair for rows in zip(plain, other, strict=True) for pair in zip(*rows, strict=False)]
    if any(isfinite(theirs) and not isfinite(ours) for theirs, ours in pairs):
        return "failed", "a loss is not finite, that of the plain run is"
    if all(isfinite(loss) for row in (*plain, *other) for loss in row):
        return None
    return "not_made", "a loss of the plain run is not finite"


def _mean_of_second_half(losses: Sequence[float]) -> float:
    return fmean(losses[len(losses) // 2 :])
