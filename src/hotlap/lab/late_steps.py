"""`LateSteps`: steps of a live process at an age that no proof follows a fresh one to; their check.

What acts late, on denormal numbers for one, does nothing in the first steps of a run.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hotlap.lab.auxiliary_checks import check_buffers
from hotlap.lab.check import Check
from hotlap.lab.coverage import BEYOND
from hotlap.lab.sampled_steps import SampledSteps, check_gradient
from hotlap.lab.update_check import check_update
from hotlap.lab.verdict import Verdict

_KEPT = 6
LATE_STEPS = 42
"""Steps that it takes to keep them."""
_STATES = ("passed", "partial", "not_made", "failed")


@dataclass(frozen=True)
class LateSteps:
    """Steps of a live process under a plan, kept whole long after its start."""

    after: int
    """Steps that the process had taken before."""
    rows: Sequence[Mapping[str, Any]]
    """Of each step: `file`, `step`, `updates` (counted from there), the `hyperparameters` of each,
    and `draws_itself`."""
    problem: str = ""
    """Why there are none, or not all."""

    @property
    def are_whole(self) -> bool:
        """True if all that were to be kept were."""
        return len(self.rows) == _KEPT


def draw_late_steps() -> tuple[int, ...]:
    """Draw the steps that are kept, counted from the first: neighbouring pairs, as in a proof.

    The first pair is always among them: it finds what the plan has not changed yet.
    """
    # Of the system: a plan that knew the others could be right at these alone.
    generator = random.SystemRandom()
    pairs = (0, generator.randint(2, 18), generator.randint(20, 38))
    return tuple(step for first in pairs for step in (first, first + 1))


def split_late(sampled: SampledSteps, late: LateSteps) -> tuple[SampledSteps, SampledSteps]:
    """Return the steps of a proof's own run, and the late ones, that were repeated together."""
    kept = {row["step"] for row in late.rows}
    rows = [row for row in sampled.rows if row["step"] not in kept]
    of_late = [row for row in sampled.rows if row["step"] in kept]
    return replace(sampled, rows=rows), replace(sampled, rows=of_late, drawn="", evaluations=())


def judge_late(verdict: Verdict, late: LateSteps, sampled: SampledSteps) -> Verdict:
    """Return the verdict with a check of the late steps.

    Args:
        verdict: on the first steps of a run under the plan.
        late: what was kept.
        sampled: the same, repeated.
    """
    if verdict.tier in ("changed", "unproven"):
        return verdict
    check = _check(late, sampled)
    checks = (*verdict.checks, check)
    if check.state == "passed":
        beyond = f", except {len(late.rows)} steps after step {late.after}"
        left = (f"{line}{beyond * line.startswith(BEYOND)}" for line in verdict.not_checked)
        words = f"{verdict.evidence}; late: {check.evidence}"
        return replace(verdict, evidence=words, checks=checks, not_checked=tuple(left))
    tier = "changed" if check.state == "failed" else "unproven"
    return replace(verdict, tier=tier, evidence=f"late: {check.evidence}", checks=checks)


def _check(late: LateSteps, sampled: SampledSteps) -> Check:
    if not sampled.rows:
        return Check("late", "not_made", late.problem or sampled.problem)
    parts = (
        check_gradient(sampled),
        check_update(sampled),
        check_buffers(sampled, is_narrow=False),
    )
    worst = max((part.state for part in parts), key=_STATES.index)
    words = "; ".join(f"{part.name}: {part.evidence}" for part in parts)
    # What a buffer holds may not be repeatable, as in the first steps.
    state = "passed" if worst == "partial" else worst
    return Check("late", state, f"after {late.after:,} steps of a live process: {words}")
