"""What a verdict covers, the smallest change each check would have seen, what is not checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from hotlap.lab.auxiliary_checks import (
    AVERAGE_LIMIT,
    BUFFER_LIMIT,
    NO_AVERAGES,
    NO_BUFFERS,
    OUTPUT_LIMIT,
    output_limit,
)
from hotlap.lab.chain import MOVED_LIMIT, OWN_CHANGES, OWN_IN_EVALUATION
from hotlap.lab.check import Check
from hotlap.lab.delivery import DELIVERY_LIMIT
from hotlap.lab.run_checks import ALL_BITS, BUT_BUFFERS
from hotlap.lab.sampled_steps import (
    NARROW_LIMIT,
    TWICE,
    SampledSteps,
    gradient_limit,
    narrow_limit,
)
from hotlap.lab.saves_check import NO_SAVES
from hotlap.lab.update_check import UPDATE_LIMIT
from hotlap.lab.updates import DECAY_LIMIT, EACH_LIMIT, FLOAT32, RATE_LIMIT, STATE_LIMIT

Record = Mapping[str, Any]
BEYOND = "everything after step"
"""What the line on steps beyond the horizon begins with."""
OF_STEPS, OF_FORWARDS = "of the steps", "of the forwards"


@dataclass(frozen=True)
class Limit:
    """The smallest change of a kind that the checks would have seen on this run."""

    of: str
    """What changes, and how often."""
    smallest: float
    """0 where a change of a single bit is seen."""
    unit: str

    def __str__(self) -> str:
        if self.smallest == 0:
            return f"{self.of}: any bit"
        if self.unit in (OF_STEPS, OF_FORWARDS):
            return f"{self.of}: {self.smallest:.0%} {self.unit}"
        return f"{self.of}: {self.smallest:.1e} {self.unit}"


def covers(plain: Record) -> dict[str, Any]:
    """Return which parts of the plain run were within the horizon.

    Returns:
        `steps`, `updates`, `epochs` that were begun (None if that is not known), `evaluations`
        (forwards, or evaluations of a recipe), `averages` (copies of the model), `schedule` (a
        hyperparameter changed), and `saved` (how often; None if that was not listened to).
    """
    numbers = plain["hyperparameters"]
    return {
        "steps": plain.get("steps", len(plain["weights"])),
        "updates": len(plain["weights"]),
        "epochs": plain.get("epochs"),
        "evaluations": len(plain.get("evaluated") or ()),
        "averages": len(plain.get("averages") or ()),
        "schedule": len(set(map(_hyperparameters, numbers))) > 1,
        "saved": plain.get("saved"),
    }


def _hyperparameters(line: str) -> str:
    groups = [{k: v for k, v in row.items() if k != "initial_lr"} for row in json.loads(line)]
    return json.dumps(groups)


def limits(
    checks: Sequence[Check], sampled: SampledSteps, *, is_exact: bool, is_narrow: bool = False
) -> tuple[Limit, ...]:
    """Return the smallest change of each kind that the checks which passed would have seen.

    Args:
        checks: as they came out.
        sampled: steps that were repeated.
        is_exact: losses, weights and buffers were equal to the plain run's, bit for bit.
        is_narrow: the plan computes in formats that are narrower than the plain run's.
    """
    absent = (NO_BUFFERS, NO_AVERAGES, NO_SAVES)
    passed = {
        check.name: check.limit
        for check in checks
        if check.state == "passed" and check.evidence not in absent
    }
    found = []
    if "batches" in passed:
        found.append(Limit("batches", 0.0, ""))
    if "start" in passed:
        found.append(Limit("initial weights", 0.0, ""))
    if "custody" in passed:
        words = "weights, optimizer state and untrained tensors that the script leaves alone"
        moves = any(OWN_CHANGES in check.evidence for check in checks)
        found.append(Limit(words, 0.0, ""))
        if moves:
            found += [
                Limit("other weights, between updates", MOVED_LIMIT, "of their norm"),
                Limit("what the script itself changes between updates", 0.5, "of that change"),
            ]
    if is_exact and "saves" in passed:
        found.append(Limit("what `torch.save` is given, before it is pickled", 0.0, ""))
    if is_exact:
        has_buffers = any(check.evidence.startswith(ALL_BITS) for check in checks)
        words = ALL_BITS if has_buffers else BUT_BUFFERS
        return (*found, Limit(f"{words}, at each step", 0.0, ""))
    if "delivery" in passed:
        words = "gradients between backward and update, at each step"
        found.append(Limit(words, passed["delivery"] or DELIVERY_LIMIT, "of their norm"))
    found += _of_updates(passed, sampled)
    if "gradient" in passed and sampled.rows:
        of_rows = narrow_limit if is_narrow else gradient_limit
        found.append(Limit("gradient, in all steps", of_rows(sampled.rows), "of its norm"))
        found += _in_some_steps("gradients", sampled, is_narrow=is_narrow)
    if "buffers" in passed:
        limit = NARROW_LIMIT if is_narrow else BUFFER_LIMIT
        found.append(Limit("buffers, in all steps", limit, "of their change"))
        if sampled.rows:
            found += _in_some_steps("buffers", sampled, is_narrow=is_narrow)
    return (*found, *_beside_steps(passed, sampled, is_narrow=is_narrow))


def _of_updates(passed: Mapping[str, float | None], sampled: SampledSteps) -> list[Limit]:
    found = []
    if "updates" in passed:
        found += [
            Limit("learning rate, in all updates", RATE_LIMIT, "of itself"),
            Limit("weights lost in each update", DECAY_LIMIT * FLOAT32, "of a weight"),
            Limit("one update, in all parts of a tensor", EACH_LIMIT, "of its norm"),
            Limit(
                "optimizer's state after one update, all tensors together",
                STATE_LIMIT * FLOAT32,
                "of its norm",
            ),
        ]
    elif "update" in passed:
        found.append(Limit("update, in all steps", UPDATE_LIMIT, "of its norm"))
    if "update" in passed and any(any(row.get("states", {}).values()) for row in sampled.rows):
        words = "optimizer's state after each update, of any tensor"
        found.append(Limit(words, UPDATE_LIMIT, "of its norm"))
    return found


def _beside_steps(
    passed: Mapping[str, float | None], sampled: SampledSteps, *, is_narrow: bool
) -> list[Limit]:
    found = []
    if "averages" in passed:
        limit = passed["averages"] or AVERAGE_LIMIT
        found.append(Limit("averages of the weights", limit, "of each movement"))
    if "evaluation" in passed:
        limits_of = [output_limit(row, is_narrow) for row in sampled.evaluations]
        limit = max(limits_of, default=NARROW_LIMIT if is_narrow else OUTPUT_LIMIT)
        found.append(Limit("outputs in evaluation, in all forwards", limit, "of their norm"))
        if sampled.evaluations:
            share = _missed_share(len(sampled.evaluations), 1)
            found.append(Limit("other outputs in evaluation, in some", share, OF_FORWARDS))
    if passed.get("losses"):
        words = "loss that backward is called on, on average of the later half"
        found.append(Limit(words, passed["losses"] or 0.0, "of itself"))
    return found


def _in_some_steps(what: str, sampled: SampledSteps, *, is_narrow: bool) -> list[Limit]:
    """Return the shares of steps in which something else is seen, large and smaller."""
    steps = len({row["step"] for row in sampled.rows})
    found = [Limit(f"other {what} in some steps", _missed_share(steps, 1), OF_STEPS)]
    if what == "gradients" and not is_narrow:
        of = f"gradients that are {TWICE:.0%} off, in some steps"
        found.append(Limit(of, _missed_share(steps, 2), OF_STEPS))
    # The median counts.
    of = f"{what} that are less off, in some steps"
    found.append(Limit(of, _missed_share(steps, (steps + 1) // 2), OF_STEPS))
    return found


def _missed_share(steps: int, seen: int) -> float:
    """Return the share of steps of which fewer than so many are sampled once in twenty times.

    Args:
        steps: that are sampled.
        seen: that have to be among them.
    """
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        share = (low + high) / 2
        missed = sum(comb(steps, k) * share**k * (1 - share) ** (steps - k) for k in range(seen))
        low, high = (share, high) if missed > 0.05 else (low, share)
    return high


def not_checked(checks: Sequence[Check], covered: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the verdict says nothing of, a line each.

    Args:
        checks: as they came out.
        covered: see `covers`.
    """
    has_its_bits = any(check.name == "bits" and check.state == "passed" for check in checks)
    found = [f"{BEYOND} {covered['steps']}"]
    found += [f"{check.name}: {check.evidence}" for check in checks if check.state == "partial"]
    if not covered["evaluations"] and not any(line.startswith("evaluation") for line in found):
        found.append("evaluation: no evaluation within the horizon")
    if any(OWN_IN_EVALUATION in check.evidence for check in checks) and not has_its_bits:
        found.append("which other weights the script evaluates or saves than those it trains")
    kept = "copies of the weights that the script keeps in memory, as the best so far"
    found.append(kept if covered["averages"] else f"{kept}; averages of them: none was found")
    if covered["averages"] and not has_its_bits:
        found.append("buffers of averaged models that their own forwards change, as of `update_bn`")
    saves = "saving: how objects are pickled, and files other than those of `torch.save`"
    if not covered["saved"]:
        saves = "what is saved later: no save was recorded within the horizon"
    elif not has_its_bits:
        saves += ", names, numbers, and tensors that are not trained"
    found.append(saves)
    if covered["evaluations"]:
        found.append(
            "what the script computes from the model's outputs in evaluation, and parts of the "
            "model that it calls there by themselves"
        )
    return tuple(found)
