"""What a step costs beyond the loop that one writes by hand, where there is almost nothing to do.

The raw loop gathers its batch from memory by index, as an expert does; the peers, where they are
installed, are fed by the same in-memory gather.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from benchmarks.__main__ import Result
from hotlap.engine.build import build
from hotlap.engine.run import steps_of
from hotlap.host import Host
from hotlap.lab.statistics import spread
from hotlap.plan import Plan

SAMPLES, BATCH = 20_000, 20
EPOCH = SAMPLES // BATCH


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--rounds N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead")
    parser.add_argument("--rounds", type=int, default=3 if quick else 15)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    ways: dict[str, Callable[[], float]] = {
        "raw loop": raw,
        "raw loop again": raw,
        "engine, bare": engine(check_finite=False),
        "engine, finite check": engine(check_finite=True),
        "engine, finite check, loss summed": engine(check_finite=True, sum_loss=True),
    }
    for way in ways.values():
        way()
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            seen[name].append(ways[name]())
    result = Result()
    for name, values in seen.items():
        above = [mine - theirs for mine, theirs in zip(values, seen["raw loop"], strict=True)]
        row, more = spread(values), spread(above)
        result.rows.append(
            {
                "way": name,
                "us/step": f"{row.median:.1f} ({row.low:.1f} to {row.high:.1f})",
                "above raw": f"{more.median:+.1f} ({more.low:+.1f} to {more.high:+.1f})",
                "rounds": len(values),
            }
        )
        result.figures[f"{name}: us_above_raw"] = median(above)
    return result


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(SAMPLES, 4, generator=generator),
        torch.randn(SAMPLES, 1, generator=generator),
    )


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def raw() -> float:
    """Return us per step of one epoch by hand."""
    inputs, targets = _data()
    model = _model()
    optimizer = _optimizer(model)
    begin = time.perf_counter()
    for index in torch.randperm(SAMPLES).split(BATCH):
        batch = inputs.index_select(0, index), targets.index_select(0, index)
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - begin) / EPOCH * 1e6


def engine(*, check_finite: bool, sum_loss: bool = False) -> Callable[[], float]:
    """Return a function that takes one steady epoch and returns us per step."""
    task = hotlap.Task(
        model=_model,
        loss=_loss,
        data=TensorDataset(*_data()),
        optimizer=_optimizer,
        batch_size=BATCH,
        epochs=10_000,
    )
    built = build(task, Plan({"resident": {}}), check_finite=check_finite, fill_ahead=True)
    steps = steps_of(built)

    def epoch() -> float:
        total: Any = 0.0
        begin = time.perf_counter()
        for step in steps:
            if sum_loss:
                total = total + step.loss * step.samples
            if step.ends_epoch:
                break
        return (time.perf_counter() - begin) / EPOCH * 1e6

    return epoch
