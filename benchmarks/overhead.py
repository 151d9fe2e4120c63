"""What a step costs beyond the loop that one writes by hand, where there is almost nothing to do.

The raw loop gathers its batch from memory by index, as an expert does. Each option of the engine is
switched on alone, so that its price shows; where it has a counterpart by hand, that stands beside.
Peers run in processes of their own, against the same raw loop in the same process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import TensorDataset

import hotlap
from benchmarks import peers
from benchmarks.__main__ import Result
from benchmarks.tiny_step import BATCH, EPOCH, data, loss, model, optimizer, raw
from hotlap.device.accelerator import Device
from hotlap.engine.build import build
from hotlap.engine.clock import EpochClock
from hotlap.engine.retries import Retries
from hotlap.engine.steps import steps_of
from hotlap.host.facts import Host
from hotlap.lab.statistics import spread
from hotlap.plan import Plan

ROOT = Path(__file__).parents[1]


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--rounds N`, `--no-peers`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead")
    parser.add_argument("--rounds", type=int, default=3 if quick else 15)
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    result = Result()
    seen = _in_turns(args.rounds)
    for name, values in seen.items():
        _add(result, name, values, seen["raw loop"])
    bare = seen["engine, bare"]
    for name, values in seen.items():
        if name.startswith("engine, ") and values is not bare:
            price = [mine - theirs for mine, theirs in zip(values, bare, strict=True)]
            result.figures[f"{name}: us_above_bare"] = median(price)
    result.rows = [{**row, "above bare": _price(result, row["way"])} for row in result.rows]
    if not args.no_peers:
        result.notes += peers.told()
        for name in peers.versions():
            for settings in ("default", "tuned"):
                both = _peer(name, settings == "tuned", min(args.rounds, 5))
                _add(result, f"{name}, {settings}", both["peer"], both["raw"])
                result.rows[-1]["above bare"] = ""
    return result


def _in_turns(rounds: int) -> dict[str, list[float]]:
    """Return way -> us per step of each round."""
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=10**6)
    ways: dict[str, Callable[[], float]] = {
        "raw loop": raw,
        "raw loop again": raw,
        "raw loop, finite check": partial(raw, finite=True),
        "raw loop, clip_norm": partial(raw, clip=True),
        "raw loop, schedule": partial(raw, schedule=True),
        "engine, bare": engine(),
        "engine, finite check": engine(check_finite=True),
        "engine, steps retried": engine(is_retried=True),
        "engine, loss summed": engine(each=lambda: _Sum().add),
        "engine, the clock of hotlap.train": engine(each=lambda: EpochClock(Device("cpu")).add),
        "engine, clip_norm": engine(clip_norm=1.0),
        "engine, clip_value": engine(clip_value=1.0),
        "engine, schedule": engine(schedule=schedule),
        "engine, accumulate=2": engine(batch_size=BATCH // 2, accumulate=2),
        "engine, batch_transform": engine(batch_transform=lambda batch, _: batch),
        "engine, transform": engine(transform=lambda sample, _: sample),
    }
    for way in ways.values():
        way()
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            seen[name].append(ways[name]())
    return seen


def _add(result: Result, name: str, values: Sequence[float], base: Sequence[float]) -> None:
    above = [mine - theirs for mine, theirs in zip(values, base, strict=True)]
    row, more = spread(list(values)), spread(above)
    result.rows.append(
        {
            "way": name,
            "us/step": f"{row.median:.1f} ({row.low:.1f} to {row.high:.1f})",
            "above raw": f"{more.median:+.1f} ({more.low:+.1f} to {more.high:+.1f})",
            "rounds": len(values),
        }
    )
    result.figures[f"{name}: us_above_raw"] = median(above)


def _price(result: Result, way: str) -> str:
    price = result.figures.get(f"{way}: us_above_bare")
    return "" if price is None else f"{price:+.1f}"


class _Sum:
    """What a user writes to see the mean loss of an epoch."""

    def __init__(self) -> None:
        self.total: Any = 0.0

    def add(self, step: Any) -> None:
        """Count a step in."""
        self.total = self.total + step.loss * step.samples


def engine(
    *,
    check_finite: bool = False,
    is_retried: bool = False,
    each: Callable[[], Callable[[Any], None]] | None = None,
    **options: Any,
) -> Callable[[], float]:
    """Return a function that takes one steady epoch and returns us per step.

    Args:
        check_finite: see `hotlap.steps`.
        is_retried: takes steps again that run out of memory, as `hotlap.train` does.
        each: makes what is called with each step of an epoch.
        options: of the task.
    """
    given = {
        "model": model,
        "loss": loss,
        "data": TensorDataset(*data()),
        "optimizer": optimizer,
        "batch_size": BATCH,
        "epochs": 10_000,
    }
    task = hotlap.Task(**{**given, **options})
    built = build(task, Plan({"resident": {}}), check_finite=check_finite, fill_ahead=True)
    steps = steps_of(built, retries=Retries(built, print) if is_retried else None)

    def epoch() -> float:
        work = None if each is None else each()
        begin = time.perf_counter()
        for step in steps:
            if work is not None:
                work(step)
            if step.ends_epoch:
                break
        return (time.perf_counter() - begin) / EPOCH * 1e6

    return epoch


def _peer(name: str, tuned: bool, rounds: int) -> dict[str, list[float]]:
    """Return us per step of a peer's epochs, and of the raw loop's before each of them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        command = [sys.executable, "-m", "benchmarks.overhead_peers", name, "--out", str(out)]
        command += ["--rounds", str(rounds), *(["--tuned"] if tuned else [])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(out.read_text())
