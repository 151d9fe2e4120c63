"""Parameters with several names: one master, one state, all their names in a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.engine.train import TrainingReport
from hotlap.plan import Plan

PLANS = {
    "plain": Plan(),
    "masters": Plan({"master_weights": {}}),
    "masters, fused": Plan({"master_weights": {}, "optimizer": {"implementation": "fused"}}),
}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layer(self.tokens(tokens))))


def train(folder: Path, plan: Plan, steps: int, **more: Any) -> TrainingReport:
    tokens = torch.arange(200).square().remainder(12).reshape(20, 10)
    task = hotlap.Task(
        model=Tied,
        loss=lambda model, batch: nn.functional.cross_entropy(
            model(batch[0]).flatten(0, 1), batch[1].flatten()
        ),
        data=TensorDataset(tokens, tokens.roll(-1)),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        batch_size=4,
        steps=steps,
        clip_norm=1.0,
    )
    return hotlap.train(task, plan, run_dir=folder, **more)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_weight_that_a_list_names_twice_gets_its_gradient_once(clip_norm: float | None) -> None:
    """Of SGD, which torch lets update such a weight twice, the gradient shows in the weights."""

    def network() -> Tied:
        torch.manual_seed(0)
        return Tied()

    def losses(model: Any, batch: Any) -> tuple[torch.Tensor, int]:
        logits = model(batch[0]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, batch[1].flatten(), reduction="sum")
        return loss, batch[1].numel()

    def optimizer(model: Any) -> torch.optim.Optimizer:
        twice = [*model.tokens.parameters(), *model.layer.parameters(), *model.head.parameters()]
        return torch.optim.SGD(twice, lr=0.1)

    tokens = torch.arange(200).square().remainder(12).reshape(20, 10)
    data = TensorDataset(tokens, tokens.roll(-1))
    plain = network()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        by_hand = optimizer(plain)
    total, count = losses(plain, (tokens, tokens.roll(-1)))
    (total / count).backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
    by_hand.step()
    for accumulate in (1, 4):
        task = hotlap.Task(
            model=network,
            loss=losses,
            data=data,
            optimizer=optimizer,
            batch_size=20 // accumulate,
            accumulate=accumulate,
            steps=1,
            clip_norm=clip_norm,
        )
        with pytest.warns(UserWarning, match="duplicate parameters"):
            done = hotlap.train(task)
        for name, weight in done.model.named_parameters():
            torch.testing.assert_close(weight, plain.get_parameter(name), msg=name)


def saved(folder: Path) -> Any:
    found, _ = find_newest(folder / "ckpt")
    assert found is not None
    return found.tensors


@pytest.mark.parametrize("name", PLANS)
def test_resumed_is_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", PLANS[name], 12)
    train(tmp_path / "parts", PLANS[name], 7)
    train(tmp_path / "parts", PLANS[name], 12, resume="auto")
    expected, found = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    for file in ("model", "optimizer"):
        assert found[file].keys() == expected[file].keys()
        for key, tensor in expected[file].items():
            assert torch.equal(found[file][key], tensor), key
    assert whole.model.head.weight is whole.model.tokens.weight
    assert torch.equal(whole.model.head.weight, expected["model"]["tokens.weight"])


@pytest.mark.parametrize("name", PLANS)
def test_every_name_holds_what_was_trained_and_loads_into_the_plain_model(
    name: str, tmp_path: Path
) -> None:
    train(tmp_path, PLANS[name], 3)
    tensors = saved(tmp_path)
    model = tensors["model"]
    assert model.keys() == Tied().state_dict().keys()
    assert {tensor.dtype for tensor in model.values()} == {torch.float32}
    assert torch.equal(model["head.weight"], model["tokens.weight"])
    # Rounded to bfloat16 it would be the copy, not what the optimizer trains.
    assert not torch.equal(model["head.weight"], model["head.weight"].bfloat16().float())
    assert "tokens.weight/exp_avg" in tensors["optimizer"]
    assert not any(key.startswith("head") for key in tensors["optimizer"])
    Tied().load_state_dict(dict(model))


def test_gradients_of_an_embedding_are_summed_in_float32() -> None:
    from hotlap.techniques.wide_embeddings import sum_embeddings_in_float32

    embedding = nn.Embedding(2, 4).to(torch.bfloat16)
    tokens = torch.zeros(1024, dtype=torch.long)
    embedding(tokens).sum().backward()
    assert embedding.weight.grad is not None
    # Added one by one, bfloat16 cannot count beyond 256.
    assert float(embedding.weight.grad[0, 0]) == 256.0
    embedding.weight.grad = None
    (undo,) = sum_embeddings_in_float32(embedding)
    embedding(tokens).sum().backward()
    assert float(embedding.weight.grad[0, 0]) == 1024.0
    undo()
    assert "forward" not in vars(embedding)


def test_an_embedding_that_does_more_than_look_up_is_left_alone() -> None:
    from hotlap.techniques.wide_embeddings import sum_embeddings_in_float32

    special = (nn.Embedding(2, 4, max_norm=1.0), nn.Embedding(2, 4, sparse=True))
    assert sum_embeddings_in_float32(nn.ModuleList(special)) == []
