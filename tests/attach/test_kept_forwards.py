"""Forwards in evaluation that a proof keeps, and repeats in another process."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach.roles.evaluations import Evaluations, repeat


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor


class Model(nn.Module):
    """Takes what models are called with beside tensors, and may draw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.draws = False

    def forward(self, x: Any, mask: Any = None, scale: float = 1.0, **more: Any) -> Any:
        x = x["pixels"] if isinstance(x, dict) else x
        x = x.to_dense() if x.is_sparse else x
        given = self.linear(x) * scale
        given = given + torch.randn_like(given) if self.draws else given
        given = given if mask is None else given * mask
        return Answer(given) if more.get("return_dict") else given


def kept(tmp_path: Path, model: Model, *args: Any, **kwargs: Any) -> list[str]:
    """Return the files of one forward, as the seams tell it."""
    model.eval()
    evaluations = Evaluations(tmp_path)
    evaluations.watch(model, 1)
    evaluations.evaluation_forward_begins(model)
    with torch.no_grad():
        output = model(*args, **kwargs)
    evaluations.evaluation_forward_ends(model, args, kwargs, output, 3)
    return evaluations.write()


CALLS: dict[str, Callable[[torch.Tensor], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "a tensor": lambda x: ((x,), {}),
    "nothing, and a number": lambda x: ((x, None), {"scale": 2.0}),
    "what needs a gradient": lambda x: ((x.clone().requires_grad_(),), {}),
    "a sparse tensor": lambda x: ((x.to_sparse(),), {}),
    "a dict": lambda x: (({"pixels": x},), {"mask": torch.ones(3)}),
    "a list beside, and a switch": lambda x: ((x,), {"return_dict": True, "sizes": [1, (2, "x")]}),
}


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_forward_is_repeated_whatever_it_was_called_with(
    call: Callable[[torch.Tensor], Any], draws: bool, tmp_path: Path
) -> None:
    model, (args, kwargs) = Model(), call(torch.randn(5, 4))
    model.draws = draws
    (file,) = kept(tmp_path, model, *args, **kwargs)
    again = Model()
    again.draws = draws
    before = torch.get_rng_state()
    found = repeat(file, [again], torch.float64)
    assert found is not None and found["error"] < 1e-6 and found["plain_error"] < 1e-6
    assert torch.equal(torch.get_rng_state(), before)
    # Control: another output is not taken for this one's rounding.
    model.register_forward_hook(lambda *_: torch.zeros(5, 3))
    (file,) = kept(tmp_path, model, *args, **kwargs)
    found = repeat(file, [again], torch.float64)
    assert found is not None and found["error"] > 0.1


def test_a_forward_of_an_object_is_not_kept(tmp_path: Path) -> None:
    class Graph:
        is_sparse = False

    class Takes(Model):
        def forward(self, x: Any, **more: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            del x, more
            return self.linear(torch.ones(2, 4))

    assert kept(tmp_path, Takes(), Graph()) == []


def test_inputs_that_a_loader_has_handed_out_are_told_from_others() -> None:
    model, evaluations = Model().eval(), Evaluations(None)
    evaluations.watch(model, 1)
    for number, change in enumerate((lambda x: x, lambda x: x.view(-1, 4), lambda x: x * 0.9)):
        batch = [torch.randn(5, 1, 4), torch.arange(5)]
        evaluations.batch_ends(batch)
        given = change(batch[0])
        evaluations.evaluation_forward_ends(model, (given,), {}, model(given), number)
    assert evaluations.of_loaders == [0, 1]
    # One that the model writes into is none.
    batch[0].mul_(2)
    evaluations.evaluation_forward_ends(model, (batch[0],), {}, model(batch[0]), 9)
    assert evaluations.of_loaders == [0, 1]
