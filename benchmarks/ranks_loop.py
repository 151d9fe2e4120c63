"""One of two ranks: trains an MLP by one way, and rank 0 prints ms per step as JSON.

The ways: `hotlap` and `hotlap, overlapping`; `ddp`, plain torch DDP as one writes it by hand, which
sums once per step; `ddp, every backward`, the same without `no_sync` under accumulation.
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.distributed.ranks import STORE
from hotlap.plan import Plan

WAYS = ("hotlap", "hotlap, overlapping", "ddp", "ddp, every backward")
_INPUTS, _CLASSES = 784, 10


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(_INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, _CLASSES),
    )


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, _INPUTS, generator=generator)
    return inputs, torch.randint(0, _CLASSES, (count,), generator=generator)


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def by_hotlap(args: argparse.Namespace, *, overlaps: bool) -> list[float]:
    """Return ms per step of each epoch."""
    task = hotlap.Task(
        model=lambda: network(args.width),
        data=TensorDataset(*samples(args.batch * args.accumulate * args.steps)),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=adam,
        batch_size=args.batch,
        accumulate=args.accumulate,
        epochs=args.epochs,
    )
    done = hotlap.train(task, Plan({"resident": {}}), device="cpu", rank_overlap=overlaps)
    per_step = args.batch * args.accumulate
    return [1000 * per_step / epoch.samples_per_s for epoch in done.epochs]


def by_ddp(args: argparse.Namespace, *, sums_once: bool) -> list[float]:
    """Return ms per step of each epoch."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ[STORE], world)  # pyright: ignore[reportPrivateImportUsage]
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    model = nn.parallel.DistributedDataParallel(network(args.width), gradient_as_bucket_view=True)
    optimizer = adam(model)
    inputs, labels = samples(args.batch * args.accumulate * args.steps)
    share = args.batch // world
    found = []
    for epoch in range(args.epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        begun = time.perf_counter()
        for step in range(args.steps):
            for number in range(args.accumulate):
                begin = (step * args.accumulate + number) * args.batch + rank * share
                part = order[begin : begin + share]
                is_last = number == args.accumulate - 1
                quiet = sums_once and not is_last
                with model.no_sync() if quiet else contextlib.nullcontext():
                    loss = nn.functional.cross_entropy(model(inputs[part]), labels[part])
                    (loss / args.accumulate).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(1000 * (time.perf_counter() - begun) / args.steps)
    dist.barrier()
    dist.destroy_process_group()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, required=True)
    for name, default in (("width", 1024), ("batch", 128), ("steps", 100), ("epochs", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    if args.way.startswith("hotlap"):
        epochs = by_hotlap(args, overlaps="overlapping" in args.way)
    else:
        epochs = by_ddp(args, sums_once="every" not in args.way)
    if os.environ["RANK"] == "0":
        # The first epoch allocates and warms up.
        print(json.dumps({"ms": statistics.median(epochs[1:] or epochs)}))


if __name__ == "__main__":
    main()
