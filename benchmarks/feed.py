"""Batches a second with nothing behind them: DataLoaders as people use them, and hotlap's feed."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fashion_mnist"))

from data import find
from plain import FashionMNIST

from benchmarks import feed_jpeg
from benchmarks.__main__ import Result
from hotlap.engine.build import build
from hotlap.host.facts import Host
from hotlap.lab.statistics import paired_ratio, spread
from hotlap.plan import Plan
from hotlap.task import Task

BATCH = 64


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--rounds N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks feed")
    parser.add_argument("--rounds", type=int, default=2 if quick else 7)
    args = parser.parse_args(argv)
    usual = torch.get_num_threads()
    dataset = FashionMNIST(find(), train=True)
    tensors = TensorDataset(dataset.images.unsqueeze(1).to(torch.float32).div(255), dataset.labels)
    feed = build(_task(dataset), Plan({"resident": {}}), fill_ahead=True).source
    epochs = iter(range(10**6))
    ways: dict[str, Callable[[], Any]] = {
        "DataLoader, decoding each item": lambda: DataLoader(dataset, BATCH, shuffle=True),
        "DataLoader over a TensorDataset": lambda: DataLoader(tensors, BATCH, shuffle=True),
        "hotlap, resident": lambda: feed.epoch(next(epochs)),
    }
    for way in ways.values():
        next(iter(way()))
    result = Result(notes=[f"{len(dataset)} samples an epoch", _compared(dataset, feed)])
    for threads in sorted({1, usual}):
        torch.set_num_threads(threads)
        _add(result, _timed(ways, args.rounds, len(dataset)), threads)
    torch.set_num_threads(1)
    feed_jpeg.measure(result, rounds=args.rounds, samples=1000 if quick else None)
    return result


def _timed(ways: dict[str, Callable[[], Any]], rounds: int, samples: int) -> dict[str, list[float]]:
    """Return the microseconds for a sample, in each round, of each way."""
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            begin = time.perf_counter()
            for _ in ways[name]():
                pass
            seen[name].append((time.perf_counter() - begin) / samples * 1e6)
    return seen


def _add(result: Result, seen: dict[str, list[float]], threads: int) -> None:
    ours = seen["hotlap, resident"]
    for name, values in seen.items():
        row, ratio = spread(values), paired_ratio(values, ours)
        result.rows.append(
            {
                "way": name,
                "threads": threads,
                "us/sample": f"{row.median:.3f} ({row.low:.3f} to {row.high:.3f})",
                "samples/s": f"{1e6 / row.median:,.0f}",
                "hotlap is faster by": f"{ratio.median:.1f} ({ratio.low:.1f} to {ratio.high:.1f})",
                "rounds": len(values),
            }
        )
        result.figures[f"hotlap / {name}, {threads} threads"] = ratio.median


def _task(dataset: Any) -> Task:
    return Task(
        model=lambda: torch.nn.Linear(1, 1),
        loss=lambda model, batch: model(batch[0]).mean(),
        data=dataset,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=BATCH,
        epochs=1,
    )


def _compared(dataset: Any, feed: Any) -> str:
    """Compare an epoch from memory with the same epoch read sample by sample."""
    plain = build(_task(dataset), Plan()).source
    for served, read in zip(feed.epoch(3), plain.epoch(3), strict=True):
        for left, right in zip(served[0][1], read[0][1], strict=True):
            if not torch.equal(left, right):
                raise RuntimeError("a batch from memory is not the one that reading gives")
    return f"{len(plain)} batches of an epoch from memory are those that reading gives, bit for bit"
