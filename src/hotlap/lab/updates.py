"""Checks of every update: repeated on sampled elements; parameters that take part; RNG states.

Single steps are repeated whole, see `sampled_steps`; these checks leave out no step. Each is made
against the plain run: what that one does not do either, a plan need not do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, sqrt
from typing import Any

from hotlap.lab.check import Check

EACH_LIMIT = 1e-4
"""Error of one update, beyond what the format rounds, as a share of the update."""
RATE_LIMIT = 1e-5
"""By how much of itself all updates together may be too long or too short."""
DECAY_LIMIT = 1.0
"""By how much of itself a weight may decay more in each update, in epsilons of its format."""
STATE_LIMIT = 32.0
"""Error of the optimizer's state after one update, in epsilons of the weights' format."""
FLOAT32 = 2.0**-23
"""Epsilon of the format."""
_MOST_LOST = 0.05
"""Share of the updates in which a tensor's drawn gradient may be zero while the plain run's is not.
"""
_MOST_UNEVEN, _UNEVEN_SHARE = 3, 0.01
"""Updates before which another count of numbers may be drawn than before others like them, as when
code is compiled; and the share that they may be of all."""
_MOST_KINDS = 0.2
"""Share of the updates that may differ in their counts of draws in the plain run."""
BLOCK = 624
"""Of a count of the CPU's draws the rest by this is known, see `hotlap.trial.update_follower`."""
GENERATORS = ("torch", "Python", "NumPy")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class UpdateEstimate:
    """What updates look like beside those that their gradients and state should have led to."""

    worst: float
    """Largest error of one update, beyond its rounding, as a share of it; infinite where no update
    is finite."""
    worst_at: int
    """Which update that was, from 1."""
    rate: float
    """How much longer the updates are, as a share; of the group where that is most."""
    decay: float
    """How much more of itself a weight loses in each update, in epsilons."""
    state: float
    """Largest error of an entry of the optimizer's state, in epsilons."""
    state_at: str
    """Which entry, at which update."""

    @property
    def is_right(self) -> bool:
        return (
            self.worst <= EACH_LIMIT
            and abs(self.rate) <= RATE_LIMIT
            and abs(self.decay) <= DECAY_LIMIT
            and self.state <= STATE_LIMIT
        )


def estimate_updates(followed: Mapping[str, Any]) -> UpdateEstimate | None:
    """Estimate from all updates of a run; None if they could not be repeated on single elements."""
    rows = [row for row in followed["updates"] if row.get("sums") is not None]
    if not rows or len(rows) < len(followed["updates"]):
        return None
    # What is not finite is judged by itself, see `check_updates`.
    finite = [(number, row) for number, row in enumerate(rows, 1) if _is_finite(row)]
    if not finite:
        return UpdateEstimate(inf, 1, 0.0, 0.0, 0.0, "")
    rows = [row for _, row in finite]
    worst, worst_at, state, state_at = 0.0, 0, 0.0, ""
    for number, row in finite:
        size = sum(group[1] for group in row["sums"])
        off = sum(group[5] for group in row["sums"])
        rounding = sum(group[6] for group in row["sums"])
        error = _share(max(0.0, sqrt(off) - sqrt(rounding)), sqrt(size))
        if not error <= worst:
            worst, worst_at = error, number
        for name, (state_off, length, eps) in row["states"].items():
            found = _share(state_off, length) / eps
            if not found <= state:
                state, state_at = found, f"`{name}` after update {number}"
    rates, decays = [0.0], [0.0]
    for group in range(max(len(row["sums"]) for row in rows)):
        of_group = [row["sums"][group] for row in rows if group < len(row["sums"])]
        rate, decay = _slopes([sum(column) for column in zip(*of_group, strict=True)])
        rates.append(rate)
        decays.append(decay / FLOAT32)
    return UpdateEstimate(
        worst, worst_at, max(rates, key=abs), max(decays, key=abs), state, state_at
    )


def _is_finite(row: Mapping[str, Any]) -> bool:
    sums = [value for group in row["sums"] or () for value in group]
    return all(map(isfinite, sums))


def _not_finite(followed: Mapping[str, Any]) -> set[int]:
    """Return the updates, from 1, that are not finite."""
    return {n for n, row in enumerate(followed["updates"], 1) if not _is_finite(row)}


def _slopes(sums: Sequence[float]) -> tuple[float, float]:
    """Return which shares of update and weight the errors hold, by least squares."""
    error_update, update, error_weight, weight, both = sums[:5]
    rest = update * weight - both**2
    if update <= 0 or weight <= 0 or rest <= 1e-12 * update * weight:
        return (error_update / update if update > 0 else 0.0), 0.0
    rate = (error_update * weight - error_weight * both) / rest
    decay = (error_weight * update - error_update * both) / rest
    return rate, decay


def check_updates(plain: Record, other: Record) -> Check:
    """Is each update what the optimizer should make of the gradient and the state that it got?"""
    ours, theirs = other.get("followed"), plain.get("followed")
    if not ours or not theirs:
        return Check("updates", "not_made", "the updates were not recorded")
    of_plain = estimate_updates(theirs)
    if of_plain is None or not of_plain.is_right:
        why = theirs["problem"] or "the plain run's own do not repeat element by element"
        return Check("updates", "partial", f"only whole updates can be repeated: {why}")
    found = estimate_updates(ours)
    if found is None:
        why = ours["problem"] or "no update was recorded"
        return Check("updates", "not_made", f"the updates could not be repeated: {why}")
    count = len(ours["updates"])
    words = (
        f"each of {count} updates repeated in float64 on sampled elements: "
        f"{beyond_rounding(found.worst)}; the learning rate is off by {found.rate:+.1e} of itself "
        f"(allowed: {RATE_LIMIT:.0e}), the decay of a weight per update by {found.decay:+.1e} "
        f"epsilons of the weight (allowed: {DECAY_LIMIT:.0f}), the optimizer's state by "
        f"{found.state:.1f} epsilons (allowed: {STATE_LIMIT:.0f})"
    )
    wrong = []
    lost = sorted(_not_finite(ours) - _not_finite(theirs))
    if lost:
        wrong.append(f"update {lost[0]} is not finite")
    if not found.worst <= EACH_LIMIT:
        wrong.append(f"update {found.worst_at} is different")
    if not abs(found.rate) <= RATE_LIMIT:
        wrong.append("the step size is different")
    if not abs(found.decay) <= DECAY_LIMIT:
        wrong.append("the weight decay is different")
    if not found.state <= STATE_LIMIT:
        wrong.append(f"the optimizer's state is different: {found.state_at}")
    if wrong:
        return Check("updates", "failed", f"{'; '.join(wrong)} ({words})")
    return Check("updates", "passed", words)


def check_participation(plain: Record, other: Record) -> Check:
    """Do the same parameters get a gradient at the same updates?"""
    ours, theirs = other.get("followed"), plain.get("followed")
    if not ours or not theirs:
        return Check("participation", "not_made", "the updates were not recorded")
    rows = [row["gradients"] for row in ours["updates"]]
    plain_rows = [row["gradients"] for row in theirs["updates"]]
    lost: dict[int, list[int]] = {}
    for number, (row, plain_row) in enumerate(zip(rows, plain_rows, strict=False), 1):
        if len(row) != len(plain_row):
            words = f"update {number} has {len(row)} parameters, in the plain run {len(plain_row)}"
            return Check("participation", "failed", words)
        without = [place for place, letter in enumerate(row) if letter == "n"]
        plain_without = [place for place, letter in enumerate(plain_row) if letter == "n"]
        if without != plain_without:
            words = f"at update {number} {len(without)} parameters have no gradient, in the plain"
            return Check("participation", "failed", f"{words} run {len(plain_without)}")
        if "g" not in row and "g" in plain_row:
            words = f"at update {number} the whole gradient is zero, in the plain run it is not"
            return Check("participation", "failed", words)
        for place, (letter, plain_letter) in enumerate(zip(row, plain_row, strict=True)):
            if letter != plain_letter:
                lost.setdefault(place, []).append(1 if letter == "z" else -1)
    for place, signs in lost.items():
        if abs(sum(signs)) > max(3.0, _MOST_LOST * len(rows)):
            words = f"the gradient of parameter {place + 1} is zero at {abs(sum(signs))} updates"
            more = "more than" if sum(signs) > 0 else "fewer than"
            return Check("participation", "failed", f"{words} {more} in the plain run")
    if not rows:
        return Check("participation", "not_made", "no update was recorded")
    if not any("g" in row for row in plain_rows):
        words = "the optimizer computes its gradients itself, in a closure"
        return Check("participation", "partial", words)
    words = f"the same parameters have a gradient at each of {len(rows)} updates"
    return Check("participation", "passed", words)


def check_random(plain: Record, other: Record) -> Check:
    """Does each step draw the plain run's random numbers?

    Returns:
        `partial` where the numbers are others, as for techniques that draw their own.
    """
    ours, theirs = other.get("followed"), plain.get("followed")
    if not ours or not theirs or not ours["updates"] or not theirs["updates"]:
        return Check("random", "not_made", "the updates were not recorded")
    compared, unused, others = [], [], []
    for place, name in enumerate(GENERATORS):
        if name in plain.get("not_repeated", ()):
            continue
        if _is_unused(other, place) and _is_unused(plain, place):
            unused.append(name)
            continue
        rows, plain_rows = generator(other, place), generator(plain, place)
        compared.append(name)
        count = min(len(rows), len(plain_rows))
        at = next((n for n in range(count) if rows[n] != plain_rows[n]), None)
        if at is None:
            continue
        again = len(set(plain_rows[:count])) - len(set(rows[:count]))
        if again > 0:
            words = f"{name}'s RNG state is the same at {again + 1} updates"
            return Check("random", "failed", f"{words}; in the plain run it advances at each")
        uneven = _count_uneven_draws(other, plain) if place == 0 else 0
        if uneven > max(_MOST_UNEVEN, _UNEVEN_SHARE * count):
            words = f"{uneven} updates come after another count of {name}'s draws than those that"
            words += " are like them in the plain run"
            return Check("random", "failed", words)
        others.append(f"{name}'s from update {at + 1} on")
    if not compared and not unused:
        return Check("random", "not_made", "two plain runs differ in their RNG states")
    if not compared:
        return Check("random", "passed", f"no update draws from {', '.join(unused)}")
    if others:
        return Check("random", "partial", f"different RNG states: {', '.join(others)}")
    words = f"the RNG states of {', '.join(compared)} are the plain run's at each update"
    return Check("random", "passed", words)


def _is_unused(record: Record, place: int) -> bool:
    """True if a generator is at all updates as it was before a script's plan was applied.

    One that nobody seeds is in another state in each run, which counts for nothing while nobody
    draws from it. One that is seeded counts even then: it may be drawn from later.
    """
    before = record["followed"].get("random_before")
    return before is not None and {*generator(record, place)} <= {before[place]}


def _count_uneven_draws(other: Record, plain: Record) -> int:
    """Return at how many updates a run draws another count of numbers than at others like them.

    Two updates of an optimizer are alike if the plain run draws as many numbers for both. A plan
    may draw another count for them, the same for all: dropout of its own, say. Where the plain run
    draws a different count at nearly every update nothing can be said.
    """
    kinds: dict[Any, Counter[Any]] = {}
    pairs = list(zip(_draws(plain), _draws(other), strict=False))
    for kind, drawn in pairs:
        if kind is None or drawn is None:
            return 0
        kinds.setdefault(kind, Counter())[drawn[1:]] += 1
    if len(kinds) > max(1, _MOST_KINDS * len(pairs)):
        return 0
    return sum(found.total() - max(found.values()) for found in kinds.values())


def _draws(record: Record) -> list[tuple[Any, ...] | None]:
    """Return for each update but the first its optimizer, and the numbers drawn since the last."""
    found: list[tuple[Any, ...] | None] = []
    for before, row in pairwise(record["followed"]["updates"]):
        places, last = row.get("place"), before.get("place")
        if not places or not last or len(places) != len(last):
            found.append(None)
            continue
        on_devices = [now - then for now, then in zip(places[1:], last[1:], strict=True)]
        found.append((row.get("optimizer"), (places[0] - last[0]) % BLOCK, *on_devices))
    return found


def generator(record: Record, place: int) -> list[str]:
    """Return the states of one generator, a digest for each update."""
    return [row["random"][place] for row in record["followed"]["updates"]]


def unrepeated_generators(first: Record, second: Record) -> list[str]:
    """Return the names of the generators that two plain runs use in other states."""
    found = []
    for place, name in enumerate(GENERATORS):
        states, others = generator(first, place), generator(second, place)
        if states != others and not (_is_unused(first, place) and _is_unused(second, place)):
            found.append(name)
    return found


def beyond_rounding(error: float) -> str:
    """Return in words an error of updates from which their rounding was taken off.

    Args:
        error: as a share of the update.
    """
    if not error:
        return "no error beyond rounding"
    return f"error beyond rounding at most {error:.1e} of the update"


def _share(part: float, whole: float) -> float:
    if not isfinite(part):
        return inf
    return part / whole if whole else (0.0 if part == 0 else inf)
