"""Runs of a model of several blocks, whose ranks share what belongs to it; a rank's program too.

All weights are -1, 0 or 1 and all inputs whole numbers, so that every sum is exact: any number of
ranks must give the same bits.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hotlap
from hotlap.plan import Plan
from tests.distributed.cases import BATCH, COUNT, Numbers
from tests.engine import lattice

LEVELS = ("optimizer", "gradients", "parameters")
HYBRID = {"level": "parameters", "replicas": 2}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.inner(inputs)


def model() -> nn.Module:
    return in_thirds(nn.Sequential(Block(), Block(), nn.Linear(4, 2)))


def in_thirds(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randint(-1, 2, parameter.shape, generator=generator)
            parameter.copy_(drawn.float())
    return module


class Forked(nn.Module):
    """Uses `other` only for batches whose first input is above zero, and `never` never."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other = model(), in_thirds(nn.Linear(4, 2))
        self.never = in_thirds(nn.Linear(4, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.body(inputs)
        return found + self.other(inputs) if inputs[0, 0] > 0 else found


class Skipping(nn.Module):
    """Leaves out a block for batches whose first input is above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(4, 2)
        in_thirds(self)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.blocks[0](inputs)
        return self.head(found if inputs[0, 0] > 0 else self.blocks[1](found))


class SkippingOnOneRank(Skipping):
    """Leaves out a block on the second rank."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.blocks[0](inputs)
        return self.head(found if os.environ.get("RANK") == "1" else self.blocks[1](found))


class InThirds(torch.optim.SGD):
    """Keeps every weight -1, 0 or 1."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.detach().round_().clamp_(-1, 1)


def network() -> nn.Module:
    body = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)) for _ in range(2)])
    return nn.Sequential(nn.Linear(4, 32), *body, nn.GELU(), nn.Linear(32, 2))


def exact(**options: Any) -> hotlap.Task:
    given: dict[str, Any] = {
        "model": model,
        "data": lattice.data(COUNT),
        "loss": lattice.tokens,
        "optimizer": lambda m: InThirds(m.parameters(), lr=1 / 16),
        "batch_size": BATCH,
        "epochs": 3,
        "held_out": lattice.data(22),
    }
    return hotlap.Task(**{**given, **options})


def decaying(model: Any) -> Any:
    """What got no gradient must not decay either."""
    return InThirds(model.parameters(), lr=1 / 16, weight_decay=10.0)


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def momentum(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def not_finite() -> Callable[[Any, Any], Any]:
    """Return a loss that is NaN at one step, on the last rank only."""
    calls = iter(range(10**6))
    is_last = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1

    def loss(model: Any, batch: Any) -> Any:
        value = lattice.squares(model, batch).sum()
        if torch.is_grad_enabled() and next(calls) == 2 and is_last:
            value = value * float("nan")
        return value, len(batch[0])

    return loss


def short_of_memory() -> Callable[[Any, Any], Any]:
    """Return a loss for which rank 1 runs out of memory at its third step."""
    calls = iter(range(10**6))

    def loss(model: Any, batch: Any) -> Any:
        value = lattice.tokens(model, batch)
        if torch.is_grad_enabled() and next(calls) == 2 and os.environ.get("RANK") == "1":
            raise torch.OutOfMemoryError("no memory on this rank")
        return value

    return loss


def beside_the_model(model: Any, batch: Any) -> Any:
    return model[1](batch[0]).square().sum(), len(batch[0])


def head_beside_the_model(model: Any, batch: Any) -> Any:
    return model[2](batch[0]).square().sum(), len(batch[0])


# Of micro-batches, what one process takes in turn several ranks take at once.
_SPLIT = (
    {"batch_size": BATCH // 2, "accumulate": 2} if os.environ.get("WORLD_SIZE", "1") == "1" else {}
)
# A step of one micro-batch divides before its backward pass, and rounds in another way.
_ORDINARY = {"model": network, "epochs": 7, "drop_last": True, **_SPLIT}

CASES: dict[str, Callable[[], hotlap.Task]] = {
    "counts": exact,
    "mean": lambda: exact(loss=lattice.mean),
    "accumulated": lambda: exact(batch_size=4, accumulate=4),
    "clipped": lambda: exact(clip_norm=64.0),
    "clipped by value": lambda: exact(clip_value=32.0),
    "stream": lambda: exact(data=Numbers()),
    "fewer samples than a step": lambda: exact(data=lattice.data(3), epochs=6),
    "a short stream": lambda: exact(data=Numbers(1)),
    "a layer that some ranks use": lambda: exact(
        model=Forked, held_out=None, optimizer=decaying, **_SPLIT
    ),
    "not finite on one rank": lambda: exact(loss=not_finite(), epochs=2),
    "adam, clipped": lambda: exact(**_ORDINARY, optimizer=adam, clip_norm=0.5),
    "momentum, clipped": lambda: exact(**_ORDINARY, optimizer=momentum, clip_norm=0.5),
    "momentum": lambda: exact(**_ORDINARY, optimizer=momentum),
    "short of memory": lambda: exact(loss=short_of_memory()),
    "a block that some ranks use": lambda: exact(model=Skipping),
    "a block that one rank skips": lambda: exact(model=SkippingOnOneRank),
    "beside the model": lambda: exact(loss=beside_the_model),
    "a head beside the model": lambda: exact(loss=head_beside_the_model),
    "adafactor": lambda: exact(optimizer=lambda m: torch.optim.Adafactor(m.parameters())),
}
EXACT = (
    "counts",
    "mean",
    "accumulated",
    "clipped",
    "clipped by value",
    "stream",
    "fewer samples than a step",
    "a layer that some ranks use",
)


def outcome(
    case: str,
    sharding: dict[str, Any] | None,
    epochs: int | None = None,
    also: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train; return losses, measures, weights as text, and what was refused or raised."""
    torch.manual_seed(0)
    task = CASES[case]()
    plan = Plan({"optimizer": {"implementation": "foreach"}} | (also or {}))
    if sharding is not None:
        plan = Plan({**plan.techniques, "sharding": sharding})
    if epochs is not None:
        task = dataclasses.replace(task, epochs=epochs)
    said: list[str] = []
    try:
        done = hotlap.train(task, plan, device="cpu", notice=said.append, **options)
    except hotlap.HotlapError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "losses": [epoch.loss for epoch in done.epochs],
        "held_out": [dict(epoch.held_out) for epoch in done.epochs],
        "weights": {name: each.tolist() for name, each in done.model.state_dict().items()},
        "classes": [type(part).__name__ for part in done.model.modules()],
        "hooks": sum(len(part._forward_pre_hooks) for part in done.model.modules()),
        "said": said,
        "skipped": done.skipped_steps,
        "retries": len(done.retries),
        "techniques": {row["name"]: [row["state"], row["why"]] for row in done.techniques},
    }


def main() -> None:
    torch.set_num_threads(1)
    found = [outcome(**given) for given in json.loads(sys.argv[1])]
    errors = [each["error"] for each in found if "error" in each]
    if errors:
        sys.exit(errors[0])
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
