"""What each rank holds of a model that ranks share: predicted against measured, Adam, with gloo.

Measured are the bytes of the storages of a rank's parameters, gradients and optimizer state behind
the third step, each storage once. Shown is the rank that holds most.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.__main__ import Result
from hotlap.distributed.ranks import detect_ranks
from hotlap.distributed.reduce import joined
from hotlap.engine.build import build
from hotlap.engine.memory.rank_bytes import measure, predict_for, predict_of
from hotlap.engine.steps import steps_of
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.task import Task

SHARDINGS: tuple[tuple[int, dict[str, Any] | None], ...] = (
    (2, None),
    (2, {"level": "optimizer"}),
    (2, {"level": "gradients"}),
    (2, {"level": "parameters"}),
    (4, {"level": "parameters"}),
    (4, {"level": "parameters", "replicas": 2}),
)
ALLOWED = 0.05
"""How far what is measured may be from what was predicted, as a share of the latter."""
KINDS = ("parameters", "gradients", "optimizer")
STEPS = 3
_RUNNER = (
    "import sys; from hotlap.distributed.launch import launch; "
    "sys.exit(launch([sys.executable, '-m', 'benchmarks.sharding', *sys.argv[2:]], "
    "int(sys.argv[1])))"
)


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--width N`, `--depth N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks sharding")
    parser.add_argument("--width", type=int, default=64 if quick else 256)
    parser.add_argument("--depth", type=int, default=2 if quick else 6)
    args = parser.parse_args(argv)
    result = Result()
    worst = 0.0
    for world, sharding in SHARDINGS:
        found = _on_ranks(world, sharding, args.width, args.depth)
        early = predict_for(task(args.width, args.depth), _plan(sharding), world)
        most = max(found, key=lambda rank: sum(rank["measured"].values()))
        off = max(
            abs(rank["measured"][kind] - rank["predicted"][kind]) / rank["predicted"][kind]
            for rank in found
            for kind in KINDS
        )
        worst = max(worst, off)
        values = sharding or {"level": "none"}
        row: dict[str, Any] = {
            "level": values["level"],
            "ranks": world,
            "replicas": values.get("replicas", 1),
        }
        for kind in KINDS:
            row[kind] = f"{_mib(most['predicted'][kind])} / {_mib(most['measured'][kind])}"
        row["total estimated"] = "unknown" if early is None else f"{early.total:,}"
        row["total measured"] = f"{sum(most['measured'].values()):,}"
        row["most off"] = f"{100 * off:.2f} %"
        result.rows.append(row)
        if early is None or abs(early.total / sum(most["measured"].values()) - 1) > ALLOWED:
            result.failed = True
            result.notes.append(f"what was predicted before the start is off: {early}")
    result.figures["most off"] = worst
    result.failed = result.failed or worst > ALLOWED
    result.notes.append(
        "of the rank that holds most: MiB predicted / measured, and bytes in total as estimated "
        f"before the start, and measured; off by {100 * worst:.2f} % at most on any rank, "
        f"{100 * ALLOWED:.0f} % are allowed"
    )
    return result


def task(width: int, depth: int) -> Task:
    """Return a task with a model of `depth` blocks, of which nothing divides by four."""

    def block() -> nn.Module:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width + 3), nn.Linear(4 * width + 3, width)
        )

    def model() -> nn.Module:
        body = nn.Sequential(*(block() for _ in range(depth)))
        return nn.Sequential(nn.Linear(30, width), body, nn.Linear(width, 10))

    def loss(model: Any, batch: Any) -> Any:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets, reduction="sum"), len(targets)

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 30, generator=generator)
    return Task(
        model=model,
        data=TensorDataset(inputs, torch.arange(64) % 10),
        loss=loss,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        batch_size=16,
        steps=STEPS,
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f}"


def _plan(sharding: dict[str, Any] | None) -> Plan:
    return Plan({} if sharding is None else {"sharding": sharding})


def _on_ranks(
    world: int, sharding: dict[str, Any] | None, width: int, depth: int
) -> list[dict[str, Any]]:
    words = [str(world), json.dumps(sharding), str(width), str(depth)]
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER, *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{world} ranks with {sharding} ended with {done.returncode}: {done.stderr}"
        )
    return json.loads(done.stdout)


def _main() -> None:
    sharding, width, depth = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with joined(detect_ranks(os.environ)) as reduce:
        built = build(task(width, depth), _plan(sharding), device="cpu", reduce=reduce)
        predicted = predict_of(built)
        assert predicted is not None
        for _ in steps_of(built):
            pass
        held = {"predicted": predicted.to_json(), "measured": measure(built).to_json()}
        found = reduce.gather(held)
        if reduce.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    _main()
