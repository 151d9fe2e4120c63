"""The check `delivery`: before an update, gradients are clipped or scaled as in the plain run.

A script may clip or scale its gradients in between. How it does so is read off the plain run, and
every update under a plan must follow from the same rule: that rests on no sampled step, and not on
the weights, which drift apart as they are rounded.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

from hotlap.lab.check import Check

DELIVERY_LIMIT = 1e-4
"""By how much of its norm a gradient that is clipped or scaled may be another one."""
_NORM_NOISE = 1e-3
"""By how much norms that are clipped to one limit may differ from it: they are sums of as many
squares as the model has parameters, in float32."""
_FEWEST_NORMS, _NOISE_OF_FEW = 16, 5e-4
"""How many norms tell how large that noise is; fewer may have this much."""
_NORMAL = 1.4826
"""Standard deviation of normal numbers by the median of how far they are from their median."""
_OF_MEDIAN = 1.2533
"""The standard deviation of a median by that of one of many normal numbers."""
_SIGMAS, _SIGMAS_OF_ONE = 5.0, 8.0
"""Standard deviations by which medians, and the norm of any one update, may be off."""
_CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm."""

Record = Mapping[str, Any]
Row = Mapping[str, Any]


class _Rule(ABC):
    """What happens to gradients between backward and update."""

    tolerance = DELIVERY_LIMIT
    """By how much of its norm a gradient may be another one than the rule makes of it."""

    @abstractmethod
    def explains(self, row: Row) -> bool:
        """Return whether an update got the gradients that this rule makes of those of backward."""

    def differs(self, rows: Sequence[Row]) -> str:
        """Return, in words, by what updates that it explains one by one are others on average."""
        del rows
        return ""

    def may_explain(self, rows: Sequence[Row]) -> bool:
        """Return whether too little is known to say that it does not explain all of these."""
        del rows
        return False


class _Untouched(_Rule):
    def explains(self, row: Row) -> bool:
        return "scale" not in row

    def __str__(self) -> str:
        return "as backward computed them"


@dataclass(frozen=True)
class _ClippedNorm(_Rule):
    limit: float
    noise: float = 0.0
    """By how much the norms of updates are off, as a share: their standard deviation."""
    updates: int = 0
    """How many that is known from."""

    @classmethod
    def of(cls, limits: Sequence[float]) -> "_ClippedNorm":
        """Return the rule by the limits that norms were clipped to, as far as they are one."""
        limit = median(limits)
        off = [abs(each - limit) for each in limits]
        # Of few nothing is known that is larger than what rounding does to any norm.
        if limit and len(off) >= _FEWEST_NORMS and max(off) <= _NORM_NOISE * limit:
            return cls(limit, _NORMAL * median(off) / limit, len(off))
        return cls(limit)

    @property
    def tolerance(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(DELIVERY_LIMIT, _SIGMAS_OF_ONE * self.noise)

    def explains(self, row: Row) -> bool:
        if "scale" not in row:
            return row["norm"] is not None and row["norm"] <= self.limit * (1 + self.tolerance)
        limit = _norm_limit(row)
        return limit is not None and _is_near(limit, self.limit, self.tolerance)

    def may_explain(self, rows: Sequence[Row]) -> bool:
        if self.updates:
            return False
        odd = [_norm_limit(row) for row in rows if not self.explains(row)]
        return all(limit and _is_near(limit, self.limit, _NOISE_OF_FEW) for limit in odd)

    def differs(self, rows: Sequence[Row]) -> str:
        limits = _norm_limits(rows)
        if not limits or not self.updates:
            return ""
        deviation = _OF_MEDIAN * self.noise * sqrt(1 / self.updates + 1 / len(limits))
        if _is_near(median(limits), self.limit, max(DELIVERY_LIMIT, _SIGMAS * deviation)):
            return ""
        return f"the norms of {len(limits)} updates are clipped to {median(limits):.7g} on average"

    def __str__(self) -> str:
        return f"clipped to a norm of {self.limit:.4g}"


@dataclass(frozen=True)
class _ClampedValues(_Rule):
    limit: float

    def explains(self, row: Row) -> bool:
        if "scale" not in row:
            return row["largest"] <= self.limit
        return row["ceiling"] is not None and _is_near(row["ceiling"], self.limit)

    def __str__(self) -> str:
        return f"clamped to values of {self.limit:.4g}"


@dataclass(frozen=True)
class _Scaled(_Rule):
    factor: float

    def explains(self, row: Row) -> bool:
        return _is_scaled(row) and _is_near(row["scale"], self.factor)

    def __str__(self) -> str:
        return f"multiplied by {self.factor:.4g}"


def _is_near(value: float, expected: float, within: float = DELIVERY_LIMIT) -> bool:
    return abs(value - expected) <= within * abs(expected)


def _is_scaled(row: Row) -> bool:
    """True if all gradients of the update were multiplied by one number."""
    return row.get("rest") is not None and row["rest"] <= DELIVERY_LIMIT


def _norm_limit(row: Row) -> float | None:
    """Return the norm that gradients were clipped to, None if they were not scaled down."""
    if not _is_scaled(row) or row["scale"] >= 1 or row["norm"] is None:
        return None
    return row["norm"] + _CLIP_EPSILON * row["scale"]


def _norm_limits(rows: Sequence[Row]) -> list[float]:
    return [limit for row in rows if "scale" in row and (limit := _norm_limit(row)) is not None]


def _find_rule(rows: Sequence[Row]) -> _Rule | None:
    """Return the rule that explains every one of these updates, None if there is none."""
    touched = [row for row in rows if "scale" in row]
    norms = _norm_limits(rows)
    ceilings = [row["ceiling"] for row in touched if row["ceiling"] is not None]
    scales = [row["scale"] for row in touched if row["scale"] is not None]
    rules: list[_Rule] = [_Untouched()]
    rules += [_ClippedNorm.of(norms)] if norms else []
    rules += [_ClampedValues(max(ceilings))] if ceilings else []
    rules += [_Scaled(median(scales))] if scales else []
    return next((rule for rule in rules if all(map(rule.explains, rows))), None)


def _by_optimizer(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the updates of each optimizer that got gradients which were followed."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row.get("followed"):
            found.setdefault(row["optimizer"], []).append(row)
    return found


def check_delivery(plain: Record, other: Record) -> Check:
    """Does each update get the gradients that backward has computed for it?"""
    ours, theirs = other.get("delivered"), plain.get("delivered")
    if not ours or not theirs or not theirs["updates"]:
        return Check("delivery", "not_made", "gradients were not followed")
    rows, plain_rows = ours["updates"], theirs["updates"]
    if len(rows) < len(plain_rows):
        words = f"the gradients of {len(rows)} updates were followed, not of {len(plain_rows)}"
        return Check("delivery", "not_made", words)
    for at, (row, plain_row) in enumerate(zip(rows, plain_rows, strict=False), 1):
        words = _find_fault(row, plain_row)
        if words:
            return Check("delivery", "failed", f"update {at}: {words}")
    of_plain, of_other = _by_optimizer(plain_rows), _by_optimizer(rows)
    if not of_plain:
        why = theirs["problem"] or "no update gets what a backward has computed"
        return Check("delivery", "partial", f"no gradient could be followed: {why}")
    if any(row.get("inside") for row in plain_rows):
        words = "the optimizer computes its gradients itself, in a closure"
        return Check("delivery", "partial", words)
    rules, own_way = [], "the script changes gradients between backward and update"
    for optimizer, its in of_plain.items():
        rule = _find_rule(its)
        if rule is None:
            return Check("delivery", "partial", f"{own_way}, in a way of its own")
        rules.append(rule)
        others = of_other.get(optimizer, ())
        odd = next((row for row in others if not rule.explains(row)), None)
        if odd is None:
            words = rule.differs(others)
            if words:
                return Check("delivery", "failed", f"{words}. Expected: {rule}")
            continue
        if rule.may_explain(others):
            words = f"gradients are {rule}, in too few updates to tell noise from a change"
            return Check("delivery", "partial", words)
        # A limit that the plain run happens not to reach.
        both = _find_rule([*its, *others]) if isinstance(rule, _Untouched) else None
        if both is None:
            at = next(n for n, row in enumerate(rows, 1) if row is odd)
            return Check("delivery", "failed", f"update {at}: {_describe_change(odd, rule)}")
        words = f"gradients are {both}, which none of the plain run reaches"
        return Check("delivery", "partial", words)
    missed = [row["missed"] for row in (*rows, *plain_rows) if "missed" in row]
    if missed:
        words = f"{len(missed)} updates could not be followed: {missed[0]}"
        return Check("delivery", "partial", words)
    how = ", ".join(dict.fromkeys(map(str, rules)))
    words = f"each of {len(rows)} updates gets its gradients {how}"
    return Check("delivery", "passed", words, max(rule.tolerance for rule in rules))


def _find_fault(row: Row, plain: Row) -> str:
    """Return which gradients an update should not have got, or has not got, "" if none."""
    if "missed" in row or "missed" in plain:
        return ""
    for key, words in (
        ("unseen", "gradients that no backward computed"),
        ("lost", "computed gradients that the update does not get"),
        ("old", "gradients that were computed before the last update"),
    ):
        if row[key] > plain[key]:
            return f"{row[key]} {words}, {plain[key]} in the plain run"
    if row.get("inside") and not plain.get("inside"):
        return "gradients are computed while it updates, not so in the plain run"
    if bool(row["carried"]) != bool(plain["carried"]):
        kept = "not zeroed" if row["carried"] else "zeroed"
        return f"the gradients of an earlier update were {kept}, unlike in the plain run"
    return ""


def _describe_change(row: Row, rule: _Rule) -> str:
    if "scale" not in row:
        return f"the gradients are as backward computed them. Expected: {rule}"
    if row["scale"] is None:
        return f"the gradients are not what backward computed. Expected: {rule}"
    words = f"the gradients are {row['scale']:.6g} times what backward computed"
    return f"{words}, error beside that {row['rest']:.1e}. Expected: {rule}"
