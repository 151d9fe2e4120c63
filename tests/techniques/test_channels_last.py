"""Channels-last layout where a model views what a convolution gives as rows."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.techniques import registry
from hotlap.techniques.record import ModelTarget


class Images(nn.Module):
    """Two convolutions, with what draws and what counts between them, and a head."""

    def __init__(self, *, flattens: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.Linear(8 * 16, 2)
        self.flattens = flattens

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.first(x)), 0.5, training=self.training)
        x = self.second(x)
        return self.head(torch.flatten(x, 1) if self.flattens else x.view(-1, 8 * 16))


def target_of(model: nn.Module) -> ModelTarget:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ModelTarget(model, [optimizer])


def forward(model: Any, images: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return model(images)


@pytest.mark.parametrize("flattens", [True, False])
def test_a_model_that_views_rows_gets_its_layout_back(flattens: bool) -> None:
    torch.manual_seed(0)
    plain, images = Images(flattens=flattens), torch.randn(5, 3, 4, 4)
    model, technique = copy.deepcopy(plain), registry()["channels_last"]
    target = target_of(model)
    technique.apply(target, technique.options({}))
    expected = [forward(plain, images) for _ in range(2)]
    found = [forward(model, images) for _ in range(2)]
    proof = technique.proof(target, technique.options({}))
    is_converted = model.second.weight.is_contiguous(memory_format=torch.channels_last)
    assert is_converted is flattens
    assert "forward" not in vars(model)
    if flattens:
        # What is drawn for an image in another layout lies elsewhere in it.
        assert proof.state == "applied" and found[1].shape == expected[1].shape
        return
    assert proof.state == "refused" and "`torch.flatten(x, 1)`" in proof.why
    # Nothing is drawn or counted twice.
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    # It is not converted again either, as between the turns of a race.
    assert technique.live is not None
    technique.live.on(target, technique.options({}))
    assert torch.equal(forward(model, images), forward(plain, images))


class Odd(Images):
    """Does what fails without gradients, and what must not be done twice."""

    def __init__(self) -> None:
        super().__init__(flattens=True)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x.add_(1)
        y = super().forward(x)
        y.register_hook(lambda gradient: gradient)
        return y.view(-1)


def test_the_forward_that_is_tried_beforehand_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model, technique, images = Odd(), registry()["channels_last"], torch.zeros(5, 3, 4, 4)
    technique.apply(target_of(model), technique.options({}))
    states = torch.get_rng_state()
    model(images)
    assert model.calls == 1 and torch.equal(images, torch.ones(5, 3, 4, 4))
    assert model.norm.num_batches_tracked == 1
    # Its dropout has drawn once.
    drawn = torch.get_rng_state()
    torch.set_rng_state(states)
    model(images)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not model._forward_pre_hooks


def test_another_error_of_the_first_forward_is_the_models_own() -> None:
    model, technique = Images(flattens=True), registry()["channels_last"]
    technique.apply(target_of(model), technique.options({}))
    with pytest.raises(RuntimeError, match="channels"):
        model(torch.randn(5, 7, 4, 4))


class Keeping(Images):
    """Keeps what its first convolution gave, for a second loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.features = self.first(x)
        return super().forward(x)


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    technique = registry()["channels_last"]
    options = technique.options({})
    model, images = Keeping(flattens=False), torch.randn(5, 3, 4, 4)
    target = target_of(model)
    technique.apply(target, options)
    assert technique.live is not None
    technique.live.off(target, options)
    model(images)
    technique.live.on(target, options)
    assert model(images).shape == (5, 2)
    proof = technique.proof(target, options)
    assert proof.state == "refused" and "cannot be copied" in proof.why
    assert model.second.weight.is_contiguous()


def test_a_forward_that_is_set_on_the_model_counts_once() -> None:
    technique, images = registry()["channels_last"], torch.randn(5, 3, 4, 4)
    model = Images(flattens=True)
    own = model.forward
    model.forward = lambda x: own(x)  # pyright: ignore[reportAttributeAccessIssue]
    model.register_buffer("graph", torch.eye(4).to_sparse())
    # Its code calls `view`, which does no harm.
    model.more = Images(flattens=False)
    technique.apply(target_of(model), technique.options({}))
    with torch.autocast("cpu"):
        model(images).sum().backward()
    assert model.norm.num_batches_tracked == 1
    assert model.first.weight.grad is not None and model.head.weight.grad is not None


def test_an_optimizer_that_the_model_holds_is_not_copied() -> None:
    technique = registry()["channels_last"]
    model, seen = Images(flattens=False), []
    target = target_of(model)
    (model.optimizer,) = target.optimizers

    class Counted(Images):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self.optimizer)
            return super().forward(x)

    model.__class__ = Counted
    technique.apply(target, technique.options({}))
    model(torch.randn(5, 3, 4, 4))
    assert len(seen) == 2 and seen[0] is seen[1]
