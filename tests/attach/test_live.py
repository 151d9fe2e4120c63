"""Plans are switched in the process that trains; what cannot be switched is said."""

import gc
from collections.abc import Iterator

import pytest
import torch

from hotlap.attach import seams
from hotlap.attach.live import LivePlans


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure


@pytest.fixture
def optimizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.optim.Optimizer]:
    made = torch.optim.Adam([torch.ones(3, requires_grad=True)])
    monkeypatch.setattr(seams, "known_optimizers", lambda: [made])
    yield made


def test_plans_are_switched_one_after_another(optimizer: torch.optim.Optimizer) -> None:
    del optimizer
    threads = torch.get_num_threads()
    plans = LivePlans(
        [
            {"threads": {"count": threads + 1}, "garbage_collector": {}},
            {"threads": {"count": threads + 2}},
        ]
    )
    plans.prepare()
    assert plans.failed == {} and torch.get_num_threads() == threads and gc.isenabled()
    try:
        plans.use(0)
        assert torch.get_num_threads() == threads + 1 and not gc.isenabled()
        plans.use(1)
        assert torch.get_num_threads() == threads + 2 and gc.isenabled()
    finally:
        plans.use(None)
    assert torch.get_num_threads() == threads and gc.isenabled()


def test_a_plan_that_cannot_be_switched_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Own([torch.ones(3, requires_grad=True)])
    monkeypatch.setattr(seams, "known_optimizers", lambda: [own])
    plans = LivePlans([{"optimizer": {"implementation": "fused"}}, {"garbage_collector": {}}])
    plans.prepare()
    assert list(plans.failed) == [0] and "Own" in plans.failed[0]
    assert list(LivePlans([]).failed) == []
