"""Rates over a run: where they rise, stay and fall."""

from typing import Any

import pytest
import torch

from hotlap import UsageError, schedules


def rates(schedule: Any, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    made, seen = schedule(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return seen


def test_warmup_and_cosine() -> None:
    seen = rates(schedules.warmup_cosine(total=20, warmup=4, floor=0.1), 22)
    assert seen[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert seen[12] == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert seen[4:21] == sorted(seen[4:21], reverse=True)
    assert seen[20] == seen[21] == pytest.approx(0.2)


def test_warmup_plateau_and_decay() -> None:
    seen = rates(schedules.warmup_stable_decay(total=10, warmup=2, decay=4), 11)
    assert seen == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"total": 0}, "total=0"),
        ({"total": 10, "warmup": 11}, "steps, which is more than total=10"),
        ({"total": 10, "warmup": 2.5}, "warmup=2.5"),
        ({"total": 10, "floor": -1}, "floor=-1"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        schedules.warmup_cosine(**options)
    with pytest.raises(UsageError):
        schedules.warmup_stable_decay(total=10, warmup=6, decay=5)
