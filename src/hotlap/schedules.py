"""Learning-rate schedules that torch has no class for; each is stepped once per optimizer step."""

import math
from collections.abc import Callable
from typing import Any

from hotlap.errors import UsageError


def warmup_cosine(*, total: int, warmup: int = 0, floor: float = 0.0) -> Callable[[Any], Any]:
    """Return a `Task.schedule`: a linear rise, then half a cosine down to `floor`.

    Args:
        total: optimizer steps of the whole run, see `Task.total_steps`.
        warmup: steps of the rise; the first step has a rate of `1 / warmup`, not 0.
        floor: last rate, as a share of the optimizer's own.

    Raises:
        UsageError: the parts do not fit into the whole.
    """
    _check("warmup_cosine", total, floor, warmup=warmup)

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, total - warmup)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return _schedule(share, "warmup_cosine", total=total, warmup=warmup, floor=floor)


def warmup_stable_decay(
    *, total: int, warmup: int = 0, decay: int, floor: float = 0.0
) -> Callable[[Any], Any]:
    """Return a `Task.schedule`: a linear rise, a plateau, and a linear fall to `floor`.

    Args:
        total: optimizer steps of the whole run.
        warmup: steps of the rise.
        decay: steps of the fall, at the end.
        floor: last rate, as a share of the optimizer's own.

    Raises:
        UsageError: the parts do not fit into the whole.
    """
    _check("warmup_stable_decay", total, floor, warmup=warmup, decay=decay)

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        left = total - step
        return 1.0 if left >= decay else floor + (1 - floor) * max(0, left) / decay

    return _schedule(
        share, "warmup_stable_decay", total=total, warmup=warmup, decay=decay, floor=floor
    )


def _schedule(share: Callable[[int], float], name: str, **values: float) -> Callable[[Any], Any]:
    def schedule(optimizer: Any) -> Any:
        from torch.optim.lr_scheduler import LambdaLR

        class Schedule(LambdaLR):
            hotlap_name, hotlap_total = name, values["total"]

        made = Schedule(optimizer, share)
        # Its state says what it is: torch's leaves functions out.
        made.hotlap_values = values  # pyright: ignore[reportAttributeAccessIssue]
        return made

    return schedule


def _check(schedule: str, total: int, floor: float, **parts: int) -> None:
    for name, steps in {"total": total, **parts}.items():
        least = 1 if name == "total" else 0
        if type(steps) is not int or steps < least:
            raise UsageError(
                f"{schedule}: {name}={steps!r} is not allowed. Expected: an integer of {least} or "
                "more, in steps."
            )
    needed = sum(parts.values())
    if needed > total:
        given = " + ".join(f"{name}={steps}" for name, steps in parts.items())
        raise UsageError(
            f"{schedule}: {given} takes {needed} steps, which is more than total={total}. Set "
            f"total to {needed} or more, or reduce {' or '.join(parts)} by {needed - total} steps."
        )
    if not 0 <= floor <= 1:
        raise UsageError(f"{schedule}: floor={floor!r} is not allowed. Expected: 0 to 1.")
