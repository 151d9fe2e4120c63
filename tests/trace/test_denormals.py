"""Denormal numbers in an optimizer's state are counted, and nothing else is."""

import pytest
import torch

from hotlap.trace import denormals
from hotlap.trace.denormals import count_denormals


def optimizer_with(values: torch.Tensor) -> torch.optim.Optimizer:
    parameter = torch.ones(values.shape, requires_grad=True)
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.state[parameter]["exp_avg"] = values
    return optimizer


def test_only_what_is_denormal_is_counted() -> None:
    values = torch.tensor([0.0, 1.0, 1.2e-38, 1.1e-38, -1e-40, float("nan"), float("inf")])
    assert count_denormals([optimizer_with(values)]) == 2
    assert count_denormals([optimizer_with(values.double())]) == 0
    assert count_denormals([optimizer_with(values.to_sparse())]) == 0
    assert count_denormals([]) == 0


def test_of_a_large_tensor_some_elements_speak_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(denormals, "_LOOKED_AT", 100)
    values = torch.full((10, 95), 1e-40)
    assert count_denormals([optimizer_with(values)]) == 950
    values[:5] = 1.0
    assert count_denormals([optimizer_with(values)]) == pytest.approx(475, abs=20)
