"""Does one flat buffer for all parameters pay? Adam over many tensors, and over one, in turns.

The flat loop keeps parameters and gradients as views into one buffer each, so that the optimizer
sees one tensor; in turn gradients are zeroed and added to, where they are forgotten otherwise.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.lab.statistics import spread

IMPLEMENTATIONS = ("foreach", "fused")


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--rounds N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks flat")
    parser.add_argument("--rounds", type=int, default=3 if quick else 15)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    result = Result()
    for name, make, width in (("MLP, 6 tensors", mlp, 784), ("96 tensors of 64 x 64", deep, 64)):
        ways = {
            f"{where}, {implementation}": steps(make, width, implementation, where == "flat")
            for implementation in IMPLEMENTATIONS
            for where in ("tensors", "flat")
        }
        for way in ways.values():
            way()
        seen: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(args.rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                seen[way].append(ways[way]())
        for implementation in IMPLEMENTATIONS:
            plain, flat = (seen[f"{where}, {implementation}"] for where in ("tensors", "flat"))
            gain = spread([a / b for a, b in zip(plain, flat, strict=True)])
            result.rows.append(
                {
                    "model": name,
                    "Adam": implementation,
                    "tensors, us": f"{spread(plain).median:.0f}",
                    "flat, us": f"{spread(flat).median:.0f}",
                    "flat is faster by": f"{gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})",
                }
            )
            result.figures[f"{name}, {implementation}"] = gain.median
    return result


def mlp() -> nn.Module:
    sizes = (784, 512, 512, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def deep() -> nn.Module:
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(48)])


def steps(
    make: Callable[[], nn.Module], width: int, implementation: str, is_flat: bool, count: int = 20
) -> Callable[[], float]:
    """Return what takes `count` steps and returns the microseconds of one."""
    torch.manual_seed(0)
    model, inputs = make(), torch.randn(64, width)
    held = [flattened(model)] if is_flat else list(model.parameters())
    options: Any = {implementation: True}
    optimizer = torch.optim.Adam(held, lr=1e-3, **options)

    def turn() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=not is_flat)
            model(inputs).square().mean().backward()
            optimizer.step()
        return (time.perf_counter() - begin) / count * 1e6

    return turn


def flattened(model: nn.Module) -> torch.Tensor:
    """Make the parameters, and their gradients, views into one buffer each; return the first."""
    parameters = list(model.parameters())
    buffer = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    buffer.grad = torch.zeros_like(buffer)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = buffer.data[start:end].view_as(parameter)
        parameter.grad = buffer.grad[start:end].view_as(parameter)
        start = end
    return buffer
