"""What a graph holds is looked at without calling hooks of the script's."""

from typing import Any

import pytest
import torch

from hotlap.trace.object_sizes import graph_of


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        ctx.save_for_backward(given)
        return given * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        return ctx.saved_tensors[0] * gradient


@pytest.mark.parametrize("compute", [torch.exp, Twice.apply])
def test_tensors_behind_hooks_are_not_asked_for(compute: Any) -> None:
    given, asked = torch.ones(3, requires_grad=True), list[Any]()

    def unpack(packed: Any) -> Any:
        asked.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        hooked = compute(given).sum()
    assert graph_of([hooked]).tensors == [] and not asked
    plain = compute(given).sum()
    (saved,) = graph_of([plain]).tensors
    assert saved.shape == (3,)
    plain.backward()
    assert graph_of([plain]).tensors == []
