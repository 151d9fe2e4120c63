"""Evaluation makes each forward pass once, and only where nobody can tell."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hotlap
from hotlap.engine.once import Once

BATCHES = [torch.rand(4, 3, generator=torch.Generator().manual_seed(k)) for k in range(5)]


class Counting(torch.nn.Module):
    """Counts its forward passes in evaluation."""

    def __init__(self, kind: str = "tensor") -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.kind, self.passes = kind, 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        self.passes += not self.training
        y = self.linear(x) * scale
        if self.kind == "draws":
            return y + torch.rand(2)
        if self.kind == "opaque":
            return type("Output", (), {"logits": y})()
        return {"logits": y, "hidden": (x, None)} if self.kind == "dict" else y


def logits(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    return output["logits"] if isinstance(output, dict) else output.logits


def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    return logits(model(x)).mean()


def largest(model: Any, x: torch.Tensor) -> torch.Tensor:
    return logits(model(x)).max()


def in_place(model: Any, x: torch.Tensor) -> torch.Tensor:
    return logits(model(x)).mul_(2).mean()


def input_in_place(model: Any, x: torch.Tensor) -> torch.Tensor:
    return logits(model(x.add_(1))).mean()


def other_scale(model: Any, x: torch.Tensor) -> torch.Tensor:
    return logits(model(x, scale=3.0)).mean()


def measured(
    model: Any, measures: list[Callable[..., Any]], *, shares: bool
) -> list[list[torch.Tensor]]:
    torch.manual_seed(7)
    found = []
    with torch.inference_mode():
        once = Once(model.eval())
        for batch in BATCHES:
            x = batch.clone()
            if shares:
                with once.batch():
                    found.append([measure(model, x) for measure in measures])
            else:
                found.append([measure(model, x) for measure in measures])
    return found


@pytest.mark.parametrize(
    ("kind", "measures", "passes"),
    [
        # Both on the first batch, one on each of the others.
        ("tensor", [loss, largest], 2 + 4),
        ("dict", [loss, largest, largest], 3 + 4),
        # Not twice the same call.
        ("tensor", [loss, other_scale], 2 * 5),
        # Somebody could tell.
        ("draws", [loss, largest], 2 * 5),
        ("opaque", [loss, largest], 2 * 5),
        ("tensor", [in_place, largest], 2 * 5),
        ("tensor", [loss, in_place, largest], 3 * 5),
        ("tensor", [loss, input_in_place, largest], 3 * 5),
    ],
)
def test_each_pass_is_made_once_where_nobody_can_tell(
    kind: str, measures: list[Callable[..., Any]], passes: int
) -> None:
    torch.manual_seed(0)
    model = Counting(kind)
    mine = measured(model, measures, shares=True)
    assert model.passes == passes
    assert mine == measured(model, measures, shares=False)
    assert "_compiled_call_impl" not in vars(model)


def test_hooks_see_every_pass() -> None:
    model, seen = Counting(), []
    model.linear.register_forward_hook(lambda *_: seen.append(1))
    measured(model, [loss, largest], shares=True)
    assert len(seen) == model.passes == 10


def test_a_model_that_was_compiled_stays_compiled_and_is_called_once() -> None:
    model = Counting()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    mine = measured(model, [loss, largest], shares=True)
    assert model._compiled_call_impl is compiled
    plain = Counting()
    plain.load_state_dict(model.state_dict())
    assert mine == measured(plain, [loss, largest], shares=False)


def test_a_run_says_the_same_with_metrics_and_passes_once() -> None:
    models: list[Counting] = []

    def made() -> Counting:
        models.append(Counting())
        return models[-1]

    task = hotlap.Task(
        model=made,
        loss=lambda model, batch: model(batch).square().mean(),
        data=[torch.rand(3) for _ in range(8)],
        held_out=[torch.rand(3) for _ in range(40)],
        metrics={"largest": lambda model, batch: (model(batch).max(), 1)},
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=4,
        epochs=1,
    )
    hotlap.train(task, device="cpu")
    # Ten batches of evaluation, the first of them seen twice.
    assert models[-1].passes == 10 + 1
