"""Scripts that update their parameters without an optimizer: noticed, and no others are."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hotlap.attach.roles.uncounted_steps import HandUpdates


def _update(model: nn.Module, backward: int) -> None:
    for parameter in model.parameters():
        parameter.data.add_(torch.ones_like(parameter), alpha=-0.01 * backward)


def _never(model: nn.Module, backward: int) -> None:
    """Accumulate gradients."""


def _once(model: nn.Module, backward: int) -> None:
    if backward == 5:
        _update(model, backward)


def _buffers(model: nn.Module, backward: int) -> None:
    for buffer in model.buffers():
        buffer.add_(backward)


def _frozen(model: nn.Module, backward: int) -> None:
    model.requires_grad_(requires_grad=False)
    _update(model, backward)


@pytest.mark.parametrize(
    ("change", "is_noticed"),
    [(_update, True), (_never, False), (_once, False), (_buffers, False), (_frozen, False)],
)
def test_only_parameters_that_change_again_and_again_are_updated_by_hand(
    change: Callable[[nn.Module, int], None], is_noticed: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    found = HandUpdates()
    noticed = []
    for backward in range(1, 100):
        if found.backward_begins([model]):
            noticed.append(backward)
        change(model, backward)
    assert noticed == ([40] if is_noticed else [])
