"""What is heard of a `GradScaler`, of one that is switched off, and of classes of its kind."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.amp.grad_scaler import GradScaler

from hotlap.attach import scaler_events
from hotlap.attach.listener import Listener, State
from hotlap.trace import event_kinds

_METHODS = ("__init__", "scale", "unscale_", "update")


class Ear(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def event_happens(self, kind: str) -> None:
        self.heard.append(kind)

    def loss_scaled(self, scaled: Any, given: Any) -> None:
        self.heard.append("loss_scaled")

    def gradients_unscaled(self, optimizer: Any, scaler: Any) -> None:
        self.heard.append("gradients_unscaled")


ALL = [
    event_kinds.SCALER_MADE,
    "loss_scaled",
    event_kinds.UNSCALE,
    "gradients_unscaled",
    event_kinds.SCALER_UPDATE,
]


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    """Who hears of scalers; afterwards all classes are as they were."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    for kind in (GradScaler, ShardedGradScaler):
        for name in _METHODS:
            if name in vars(kind):
                monkeypatch.setattr(kind, name, vars(kind)[name])
    monkeypatch.setattr(GradScaler, "__init_subclass__", GradScaler.__init_subclass__)
    ear = Ear()
    monkeypatch.setattr(State, "listener", ear)
    scaler_events.patch()
    return ear


def step_once(scaler: Any) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def test_a_scaler_that_is_not_enabled_does_nothing_that_is_told(ear: Ear) -> None:
    step_once(GradScaler("cpu", enabled=False))
    assert ear.heard == []
    step_once(GradScaler("cpu"))
    assert ear.heard == ALL


def test_a_class_that_is_defined_later_is_heard_once(ear: Ear) -> None:
    class Mine(GradScaler):
        def unscale_(self, optimizer: Any) -> None:
            super().unscale_(optimizer)

        def update(self, new_scale: Any = None) -> None:
            super().update(new_scale)

    step_once(Mine("cpu"))
    assert ear.heard == ALL


@pytest.fixture
def group() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_the_scaler_of_fsdp_is_heard(ear: Ear) -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    step_once(ShardedGradScaler("cpu"))
    assert ear.heard == ALL
