"""A folder of JPEG files, decoded and augmented, by DataLoaders and by hotlap's tiers.

Nothing stands behind the feed. What every tier of hotlap gives is compared, bit for bit.
"""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from benchmarks.__main__ import Result
from benchmarks.by_file import module_of
from hotlap.engine.build import build
from hotlap.feed.sources.source import Source
from hotlap.lab.statistics import paired_ratio, spread
from hotlap.nested import flatten_into
from hotlap.plan import Plan
from hotlap.task import Task

BATCH = 64
FOLDER = Path(__file__).parents[1] / "examples" / "jpeg"
BASE = "DataLoader, workers 0"
TIERS = {
    "workers 0": Plan(),
    "workers 2": Plan({"workers": {"count": 2}}),
    "reader threads 2": Plan({"reader_threads": {"count": 2}}),
    "resident": Plan({"resident": {}}),
}


def measure(result: Result, *, rounds: int, samples: int | None) -> None:
    """Add rows and figures, all of whose names begin with `jpeg`.

    Args:
        result: is added to.
        rounds: turns of each way; one turn is an epoch, the start of worker processes included.
        samples: of an epoch; all if None.
    """
    data, plain, recipe = (module_of(FOLDER / f"{name}.py") for name in ("data", "plain", "recipe"))
    folder = data.find()
    augmented = _part(
        plain.ImageFolder(folder, train=True, transform=plain.random_crop_and_flip), samples
    )
    decoded = _part(recipe.Decoded(folder, train=True), samples)
    by_sample = _task(decoded, transform=recipe.crop_and_flip)
    by_batch = _task(decoded, batch_transform=recipe.crop_and_flip_all)
    sources = {f"hotlap, {name}": _source(by_sample, plan) for name, plan in TIERS.items()}
    sources["hotlap, resident, whole batches"] = _source(by_batch, TIERS["resident"])
    ways: dict[str, Callable[[int], Iterable[Any]]] = {
        BASE: lambda _: DataLoader(augmented, BATCH, shuffle=True),
        "DataLoader, workers 2": lambda _: DataLoader(
            augmented, BATCH, shuffle=True, num_workers=2
        ),
        **{name: source.epoch for name, source in sources.items()},
    }
    seen = _timed(ways, rounds, len(decoded))
    for name, values in seen.items():
        row = spread(values)
        against = [paired_ratio(seen[base], values) for base in (BASE, "hotlap, workers 0")]
        result.rows.append(
            {
                "way": f"jpeg: {name}",
                "us/sample": f"{row.median:.3f} ({row.low:.3f} to {row.high:.3f})",
                "samples/s": f"{1e6 / row.median:,.0f}",
                f"x {BASE}": _shown(against[0]),
                "x hotlap, workers 0": _shown(against[1]),
                "rounds": len(values),
            }
        )
        result.figures[f"jpeg: {name} / {BASE}"] = against[0].median
        result.figures[f"jpeg: {name} / hotlap, workers 0"] = against[1].median
    first = sources["hotlap, workers 0"]
    for name in list(sources)[1:-1]:
        _compare(first, sources[name])
    result.notes.append(
        f"jpeg: {len(decoded)} files; {len(first)} batches of an epoch are the same for hotlap's "
        "tiers that transform each sample, bit for bit; figures are how many times faster; workers "
        "that outlive an epoch have four batches of the next one ready when it begins"
    )


def _part(dataset: Any, samples: int | None) -> Any:
    return dataset if samples is None else Subset(dataset, range(samples))


def _task(dataset: Any, **transforms: Any) -> Task:
    return Task(
        model=lambda: torch.nn.Linear(1, 1),
        loss=lambda model, batch: model(batch[0]).mean(),
        data=dataset,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=BATCH,
        # One epoch after another, as in a run: worker processes outlive them.
        epochs=1000,
        **transforms,
    )


def _source(task: Task, plan: Plan) -> Source:
    return build(task, plan, fill_ahead=True).source


def _timed(
    ways: dict[str, Callable[[int], Iterable[Any]]], rounds: int, samples: int
) -> dict[str, list[float]]:
    """Return us per sample of every round, in turns; the first, which warms up, is left out."""
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 == 0 else reversed(ways):
            begin = time.perf_counter()
            for _ in ways[name](number):
                pass
            seen[name].append((time.perf_counter() - begin) / samples * 1e6)
            print(f"jpeg: {name}: {seen[name][-1]:.1f} us/sample", file=sys.stderr)
    return {name: values[1:] for name, values in seen.items()}


def _shown(ratio: Any) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _compare(one: Source, other: Source) -> None:
    epoch = 10**6
    for left, right in zip(one.epoch(epoch), other.epoch(epoch), strict=True):
        mine: list[torch.Tensor] = []
        theirs: list[torch.Tensor] = []
        flatten_into(left[0][1], mine)
        flatten_into(right[0][1], theirs)
        if not all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)):
            raise RuntimeError("two tiers do not give the same batches")
