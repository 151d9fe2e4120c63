"""Judges sampled steps: gradients and updates against their repetition in float64.

Each tensor is judged by itself too: a layer that no longer learns may be a small part of the whole.
Between what honest rounding may be and what is surely something else lies what cannot be told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, median, stdev
from typing import Any

from hotlap.lab.check import Check
from hotlap.trial.repetition_ways import LAID_OUT

GRADIENT_FLOOR = 2e-5
"""Relative gradient error that float32 rounding may reach whatever the plain run's own error is."""
GRADIENT_FACTOR = 400.0
"""How much larger than the plain run's own error a gradient's may be."""
LAID_OUT_FACTOR = 10.0
"""How much larger it may be than the error of the plain step in the plan's layout.

Batch norm in channels-last layout on a CPU sums one value after another: with 16,384 terms a
gradient was off by 1.5e-5 at one step and by 1e-2 at another, as units round to the other side of
zero (torch 2.13). Where threads share a sum otherwise it is another error of that size.
"""
SLOPE_MARGIN = 1e-4
LARGEST = 0.9
"""Relative error that no honest gradient reaches while the plain run's own is small: without its
gradient a tensor is off by 1."""
NOISY = 1e-3
"""Relative error of the plain repetition above which nothing can be said of a gradient."""
TENSOR_NOISY = 0.05
"""The same for a single tensor."""
_NEGLIGIBLE = 1e-5
"""Rounding of a tensor, as a share of the whole gradient, where its exact gradient is zero."""
_EXACT_ZERO = {"float64": 1e-12, "float32": _NEGLIGIBLE}
"""Share of the whole gradient that a tensor's reaches by the rounding of the reference alone."""
_FLOAT32_ROUNDING = 1e-6
MEAN_SLOPE_MARGIN = 2e-3
"""How far from 1 the mean slope of narrow gradients on exact ones may lie, its error included."""
TENSOR_SLOPE_MARGIN = 0.1
"""The same for a single tensor, four standard errors aside: a small one may be rounded one way."""
LEAST_SLOPES = 30
"""Sampled steps that a bias of `MEAN_SLOPE_MARGIN` shows in."""
NARROW_LIMIT = 0.25
"""Relative error of a gradient in a narrower format; what is off by more is not its rounding."""
NARROW_FACTOR, NARROW_LEAST = 3.0, 5e-3
"""How much larger that error may be than the plain run's own in bfloat16, and what it may be
whatever that one is. Weights in 16 bits are rounded as well as what is computed with them."""
TWICE = 0.03
"""Relative error that no honest gradient has at two sampled steps while the plain run's own is
small: a unit that rounds to the other side of zero is one of many, or does so hardly ever."""
NARROW_ONCE = 1.0
"""The same at any one step: that far off, nothing of the gradient is left."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SampledSteps:
    """Sampled steps of a run, repeated."""

    rows: Sequence[Row] = ()
    """Results of the repetitions, see `trial.comparing`."""
    problem: str = ""
    """Why there are none."""
    fallback: str = ""
    """Why they were not repeated in float64."""
    drawn: str = ""
    """How the steps were chosen."""
    evaluations: Sequence[Row] = ()
    """Forwards of the run's evaluation, repeated: `error` and `plain_error`."""

    @property
    def words(self) -> str:
        """What they were compared with."""
        dtype = self.rows[0]["dtype"]
        words = f"{dtype} (not float64: {self.fallback})" if self.fallback else str(dtype)
        return f"{words} at {len(self.rows)} sampled steps{self.drawn and f' ({self.drawn})'}"


def check_gradient(sampled: SampledSteps) -> Check:
    """Is the gradient the plain one, rounded as its format rounds?"""
    rows = sampled.rows
    if not rows:
        return Check("gradient", "not_made", sampled.problem or "no step could be repeated")
    errors = [row["gradient_error"] for row in rows]
    slopes = [abs(row["gradient_slope"] - 1) for row in rows]
    words = (
        f"relative error {median(errors):.1e} against {sampled.words}, "
        f"slope off by {max(slopes):.1e}"
    )
    if any(map(_is_lost, rows)):
        return Check("gradient", "failed", f"{words}; {_LOST}")
    found = {
        "": _worst_state(
            [_state([_measure_whole(row) for row in its]) for its in by_optimizer(rows)]
        )
    }
    for name in _tensor_names(rows):
        found[name] = _state([_of_tensor(row, name) for row in rows if name in _tensors(row)])
    for state in ("failed", "not_made"):
        names = [name for name, its in found.items() if its == state and name]
        if names:
            words += f"; {_WHY[state]}: {list_names(names)}"
        elif found[""] == state and state == "not_made":
            words += "; the plain run's own error is as large"
        if state in found.values():
            return Check("gradient", state, words)
    return Check("gradient", "passed", words)


_LOST = "not finite where the plain run's is"


def _is_lost(row: Row) -> bool:
    """True if a gradient is not finite where its repetition in the script's own format is."""
    of_plain = min(row.get("lost", 0), row.get(LAID_OUT, {}).get("lost", inf))
    return of_plain > 0 and not row.get("narrow_lost")


def _is_unknown(row: Row) -> bool:
    """True if a gradient is not finite, nor is its repetition in the narrow format."""
    of_plain = bool(row.get("narrow_lost")) or not isfinite(row.get("narrow_error") or 0.0)
    return of_plain and not isfinite(row["gradient_error"])


_WHY = {
    "failed": "not within rounding",
    "not_made": "undecided, because the plain run's own error is large too",
}


@dataclass(frozen=True)
class _Measured:
    """One gradient, or one tensor of it, at one step."""

    size: float
    off: float
    plain: float
    rounding: float
    """Length of what rounding may be."""
    slope_rounding: float
    """What rounding may do to the slope."""
    own: float
    """Captured minus plain one, as a share of the plain one's length."""
    slope: float
    whole: float
    """Length of the whole gradient."""
    zero: float
    """Length that the rounding of the reference alone may have."""
    noisy: float
    once: float
    """Share of its length by which it is off only where it is another gradient."""
    often: int
    """Steps of that kind that are too many."""
    twice: float
    """As `once`, where it is so at two steps."""


def _measure_whole(row: Row) -> _Measured:
    plain, own = row.get("plain_error", 0.0), row.get("own_error", inf)
    laid_out = row.get(LAID_OUT, {"plain_error": 0.0, "own_error": inf})
    off = LAID_OUT_FACTOR * laid_out["plain_error"]
    return _Measured(
        size=1.0,
        off=row["gradient_error"],
        plain=plain,
        rounding=max(GRADIENT_FACTOR * plain, off),
        slope_rounding=max(GRADIENT_FACTOR * plain / sqrt(row.get("count", inf)), off),
        own=min(own, laid_out["own_error"]),
        slope=row["gradient_slope"],
        whole=1.0,
        zero=0.0,
        noisy=NOISY,
        once=NARROW_LIMIT,
        often=1,
        twice=TWICE,
    )


def _of_tensor(row: Row, name: str) -> _Measured:
    found = row["tensors"][name]
    size, plain = found["size"], found["plain"] or 0.0
    own = inf if found["own"] is None else _share(found["own"], found["own_size"])
    off = 0.0
    if LAID_OUT in row:
        laid_out = row[LAID_OUT]["tensors"][name]
        own = min(own, _share(laid_out["own"], laid_out["own_size"]))
        off = LAID_OUT_FACTOR * laid_out["plain"]
    whole = sqrt(sum(each["size"] ** 2 for each in row["tensors"].values()))
    of_slope = GRADIENT_FACTOR * _share(plain, size) / sqrt(found["count"])
    return _Measured(
        size=size,
        off=found["off"],
        plain=plain,
        rounding=max(GRADIENT_FACTOR * plain, off),
        slope_rounding=max(of_slope, _share(off, size)),
        own=own,
        slope=_share(found["dot"], size**2) if size else 1.0,
        whole=whole,
        zero=_EXACT_ZERO[row["dtype"]] * whole,
        noisy=TENSOR_NOISY,
        once=LARGEST,
        often=2,
        twice=LARGEST,
    )


def _state(measured: Sequence[_Measured]) -> str:
    """Judge one tensor, or all together, by the median over the steps, and by the worst of them.

    One unit that rounds to the other side of zero moves a gradient visibly, and may be all that
    there is of a small tensor's: it takes two steps to tell that from another gradient.
    """
    ratios = [_ratios(each) for each in measured]
    others = sum(_is_another(each, each.once) for each in measured)
    twice = sum(_is_another(each, each.twice) for each in measured)
    if median(high for _, high in ratios) > 1 or others >= measured[0].often or twice >= 2:
        return "failed"
    return "not_made" if median(low for low, _ in ratios) > 1 else "passed"


def _is_another(m: _Measured, least: float) -> bool:
    """True if a gradient is another one than the plain one, where that one is known.

    Args:
        m: the gradient.
        least: share of its length by which another one is off.
    """
    is_known = m.plain <= m.noisy * m.size and m.size > m.zero
    return is_known and m.own > least and m.off > max(least * m.size, m.rounding)


def _ratios(m: _Measured) -> tuple[float, float]:
    """Return error or slope as a multiple of what surely is rounding, and of what surely is not.

    The larger of error and slope counts.
    """
    if m.own <= GRADIENT_FLOOR:
        # It is what the plain script computes, however that is rounded.
        return 0.0, 0.0
    if not isfinite(m.rounding):
        return inf, 0.0
    floor = GRADIENT_FLOOR * m.size
    if m.size <= m.zero:
        # Both gradients are that rounding, where the reference has it too.
        floor = max(floor, _FLOAT32_ROUNDING * m.whole, 2 * m.zero)
    most = max(floor, m.rounding)
    if not m.plain <= m.noisy * m.size:
        if not m.plain <= _NEGLIGIBLE * m.whole:
            # Noise that the repetition draws otherwise, or a count that it begins again.
            return inf, 0.0
        return _share(m.off, most), _share(m.off, most)
    least = max(floor, min(m.rounding, LARGEST * m.size))
    errors = _share(m.off, least), _share(m.off, most)
    if m.size <= m.zero:
        return errors
    rounding = m.slope_rounding
    off = abs(m.slope - 1)
    low, high = max(SLOPE_MARGIN, min(rounding, m.noisy)), max(SLOPE_MARGIN, rounding)
    return max(errors[0], off / low), max(errors[1], off / high)


def gradient_limit(rows: Sequence[Row]) -> float:
    """Return the error of every tensor's gradient, as a share of it, from which on one would fail.

    It is that of the tensor for which it is smallest, among those that count.
    """
    found = [max(GRADIENT_FLOOR, m.rounding) for m in map(_measure_whole, rows)]
    limits = [median(found)]
    for name in _tensor_names(rows):
        measured = [_of_tensor(row, name) for row in rows if name in _tensors(row)]
        known = [m for m in measured if m.size > m.zero and m.plain <= m.noisy * m.size]
        if known:
            limits.append(median(max(GRADIENT_FLOOR, m.rounding / m.size) for m in known))
    return min(limits)


def check_mean_gradient(sampled: SampledSteps) -> Check:
    """Is a narrow gradient right in the mean? Its rounding is larger than what is looked for."""
    rows = sampled.rows
    if not rows:
        return Check("gradient", "not_made", sampled.problem or "no step could be repeated")
    slopes = [row["gradient_slope"] for row in rows]
    error = median(row["gradient_error"] for row in rows)
    if len(slopes) < LEAST_SLOPES:
        words = f"{len(slopes)} steps could be sampled, at least {LEAST_SLOPES} are needed"
        return Check("gradient", "not_made", words)
    if any(map(_is_lost, rows)):
        return Check("gradient", "failed", f"gradients are {_LOST}, against {sampled.words}")
    if any(map(_is_unknown, rows)) or not all(map(isfinite, slopes)):
        words = f"the plain run's gradients are not finite either, against {sampled.words}"
        return Check("gradient", "not_made", words)
    bias, doubt = fmean(slopes) - 1, 2 * stdev(slopes) / len(slopes) ** 0.5
    words = (
        f"mean slope {1 + bias:.5f} +- {doubt:.1e} against {sampled.words}, "
        f"margin {MEAN_SLOPE_MARGIN:g}, error {error:.1e} of at most {narrow_limit(rows):.1e}"
    )
    lost = [name for name in _tensor_names(rows) if _is_biased(rows, name)]
    if lost:
        return Check("gradient", "failed", f"{words}; biased: {list_names(lost)}")
    if any(row["gradient_error"] > NARROW_ONCE for row in rows):
        return Check("gradient", "failed", f"{words}; different at some steps")
    if error > narrow_limit(rows) or abs(bias) - doubt > MEAN_SLOPE_MARGIN:
        return Check("gradient", "failed", words)
    if abs(bias) + doubt > MEAN_SLOPE_MARGIN:
        return Check("gradient", "not_made", f"{words}: too few steps to decide")
    return Check("gradient", "passed", words)


def narrow_limit(rows: Sequence[Row]) -> float:
    """Return the error from which on a gradient is off by more than a narrow format's rounding."""
    own = [row["narrow_error"] for row in rows if row.get("narrow_error") is not None]
    if not own:
        return NARROW_LIMIT
    return min(NARROW_LIMIT, max(NARROW_LEAST, NARROW_FACTOR * median(own)))


def _is_biased(rows: Sequence[Row], name: str) -> bool:
    measured = [_of_tensor(row, name) for row in rows if name in _tensors(row)]
    slopes = [m.slope for m in measured if m.size > m.zero and isfinite(m.slope)]
    if len(slopes) < LEAST_SLOPES:
        return False
    return abs(fmean(slopes) - 1) > TENSOR_SLOPE_MARGIN + 4 * stdev(slopes) / sqrt(len(slopes))


def confirm_failure(check: Check, control: Check) -> Check:
    """Return a failed check as not made if the plain run fails it as well."""
    if check.state != "failed" or control.state == "passed":
        return check
    words = f"the plain run's own steps could not be repeated either ({control.evidence})"
    return Check(check.name, "not_made", words)


def by_optimizer(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each optimizer."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.get("optimizer", 0), []).append(row)
    return list(found.values())


def _worst_state(states: Sequence[str]) -> str:
    return max(states, key=("passed", "not_made", "failed").index)


def _tensors(row: Row) -> Mapping[str, Any]:
    return row.get("tensors", {})


def _tensor_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in _tensors(row)))


def list_names(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are."""
    shown = ", ".join(f"`{name}`" for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{shown}{more}"


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if 0 < whole < inf else inf
