"""A shorter formula of GELU gives the numbers of the exact one, as far as 16 bits hold them."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotlap
from hotlap import compat
from hotlap.kernels.short_gelu import rewrite

# Dynamo and Inductor import what warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore")


GIVEN = torch.linspace(-9, 9, 4097)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def both_ways(
    function: Any, dtype: torch.dtype, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    given = GIVEN.to(device, dtype).requires_grad_()
    found = function(given)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    return found.detach().cpu().double(), gradient.cpu().double()


def rewritten(function: Any, expected: int, *, is_fused: bool = False) -> Any:
    def back_end(module: Any, inputs: Any) -> Any:
        assert rewrite(module) == expected
        return compat.compile_by_inductor(module, inputs, {}) if is_fused else module.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=back_end)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_fused", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_as_near_to_float64_as_torchs_own(
    dtype: torch.dtype, device: str, *, is_fused: bool
) -> None:
    plain = both_ways(functional.gelu, dtype, device)
    short = both_ways(rewritten(nn.GELU(), 1, is_fused=is_fused), dtype, device)
    exact = both_ways(lambda given: functional.gelu(given.double()), dtype, device)
    for ours, theirs, right in zip(short, plain, exact, strict=True):
        assert (ours - right).abs().max() <= (theirs - right).abs().max() + 3e-7
        # Next to nothing is rounded otherwise, but for what is next to 0.
        differ = (ours != theirs)[GIVEN > -3].double().mean()
        assert differ < 0.01


def test_other_formats_and_the_approximate_one_stay_as_they_are() -> None:
    plain = both_ways(functional.gelu, torch.float32)
    same = both_ways(rewritten(functional.gelu, 0), torch.float32)
    assert all(torch.equal(left, right) for left, right in zip(plain, same, strict=True))
    both_ways(rewritten(nn.GELU("tanh"), 0), torch.bfloat16)


@pytest.mark.slow
def test_a_compiled_model_learns_the_same() -> None:
    torch._dynamo.reset()
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(3, (64,)))
    task = hotlap.Task(
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 3)),
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        data=data,
        optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        batch_size=16,
        epochs=2,
    )
    narrow = {"master_weights": {}}
    plain = hotlap.train(task, hotlap.Plan({**narrow, "compile": {}}))
    short = hotlap.train(task, hotlap.Plan({**narrow, "compile": {"short_gelu": True}}))
    assert short.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=1e-3)
    (row,) = (row for row in short.techniques if row["name"] == "compile")
    assert row["state"] == "applied" and row["why"].endswith("; 1 GELU by the shorter formula")
