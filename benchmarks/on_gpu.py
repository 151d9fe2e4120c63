"""What a GPU gains from each technique, part by part; `python -m benchmarks gpu` runs them.

    python -m benchmarks.on_gpu PART [--quick] [--device cuda]

prints one JSON document with `figures`, `rows` and `notes`. Ways take turns on one device, each in
both orders; times are of whole turns with the device waited for at both ends.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset

import hotlap
from benchmarks.__main__ import Result
from hotlap.device import Device, device_of
from hotlap.engine.build import Built, build
from hotlap.engine.run import steps_of
from hotlap.lab.statistics import paired_ratio, spread
from hotlap.plan import Plan

FUSED = {"optimizer": {"implementation": "fused"}}
RESIDENT = {"resident": {}}
_MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    device: Device
    rounds: int
    turn_s: float
    is_small: bool
    """To see that it works, anywhere."""


class Block(nn.Module):
    """One layer of a decoder.

    Shapes: (batch, tokens, width) in and out.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = values.shape
        parts = self.mixed(self.norms[0](values)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return values + self.wide(self.norms[1](values))


def decoder(sizes: Sizes) -> hotlap.Task:
    """Return a decoder's task: 12 layers of 768, or a tiny one."""
    layers, width, heads, tokens, batch = (
        (2, 32, 2, 16, 4) if sizes.is_small else (12, 768, 12, 1024, 8)
    )
    words = 256
    inputs = torch.randint(words, (batch * 16, tokens + 1))

    def model() -> nn.Module:
        blocks = [Block(width, heads) for _ in range(layers)]
        return nn.Sequential(nn.Embedding(words, width), *blocks, nn.Linear(width, words))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        logits = model(batch[0][:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())

    return _task(model, loss, TensorDataset(inputs), batch)


def mlp(sizes: Sizes) -> hotlap.Task:
    """Return a task whose kernels are short: three layers of 256, 64 samples."""
    count = 64 * (10 if sizes.is_small else 1000)
    data = TensorDataset(torch.randn(count, 784), torch.randint(10, (count,)))

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    return _task(model, _cross_entropy, data, 64)


def images(sizes: Sizes) -> hotlap.Task:
    """Return a task with 12 MiB of images a step before one small convolution."""
    count, side, batch = (64, 8, 16) if sizes.is_small else (8192, 64, 256)
    data = TensorDataset(torch.randn(count, 3, side, side), torch.randint(10, (count,)))

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, 10),
        )  # fmt: skip

    return _task(model, _cross_entropy, data, batch)


def _cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _task(model: Any, loss: Any, data: Any, batch: int) -> hotlap.Task:
    return hotlap.Task(
        model=model,
        loss=loss,
        data=data,
        optimizer=lambda made: torch.optim.AdamW(made.parameters(), lr=1e-4),
        batch_size=batch,
        drop_last=True,
        epochs=10**6,
    )


class Way:
    """One way to train: built, warmed up, and ready to take turns."""

    def __init__(self, task: hotlap.Task, plan: dict[str, Any], sizes: Sizes, around: Any) -> None:
        self.sizes, self.around = sizes, around or nullcontext
        before = _held(sizes.device)
        begin = time.perf_counter()
        with self.around():
            self.built: Built = build(task, Plan(plan), device=sizes.device.name, fill_ahead=True)
            self._steps: Iterator[Any] = steps_of(self.built)
            self._take(12)
        self.set_up_s = time.perf_counter() - begin
        self.peak_bytes = sizes.device.peak_bytes() - before
        with self.around():
            took = min(self._take(4) for _ in range(3)) / 4
        self.steps = max(4, int(sizes.turn_s / took))

    def _take(self, count: int) -> float:
        self.sizes.device.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            next(self._steps)
        self.sizes.device.synchronize()
        return time.perf_counter() - begin

    def turn(self) -> float:
        """Return ms per step of one turn."""
        with self.around():
            return self._take(self.steps) / self.steps * 1e3

    def states(self) -> str:
        return ", ".join(f"{row['name']} {row['state']}" for row in self.built.applied.proofs())

    def refusals(self) -> list[str]:
        rows = self.built.applied.proofs()
        return [f"{row['name']}: {row['why']}" for row in rows if row["state"] != "applied"]


def _held(device: Device) -> int:
    """Forget the peak so far, and return the bytes that are held now."""
    if device.kind != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device.name)
    return torch.cuda.memory_allocated(device.name)


def compared(
    make: Callable[[Sizes], hotlap.Task],
    ways: dict[str, dict[str, Any]],
    sizes: Sizes,
    around: dict[str, Any] | None = None,
) -> Result:
    """Let the ways take turns; the first is what the others are compared with."""
    task, result = make(sizes), Result()
    ready = {name: Way(task, plan, sizes, (around or {}).get(name)) for name, plan in ways.items()}
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(sizes.rounds):
        for name in ready if number % 2 == 0 else reversed(ready):
            seen[name].append(ready[name].turn())
    first = next(iter(ways))
    for name, values in seen.items():
        row, ratio, way = spread(values), paired_ratio(seen[first], values), ready[name]
        result.rows.append(
            {
                "way": name,
                "ms/step": f"{row.median:.3f} ({row.low:.3f} to {row.high:.3f})",
                "faster by": f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                "peak MiB": round(way.peak_bytes / _MIB),
                "set-up s": round(way.set_up_s, 1),
                "turns": len(values),
                "techniques": way.states(),
            }
        )
        result.figures[f"{name}: ms"] = row.median
        result.figures[f"{name}: faster_by"] = ratio.median
        result.figures[f"{name}: peak_bytes"] = way.peak_bytes
        result.notes += [f"{name}: {why}" for why in way.refusals()]
    return result


def copies(sizes: Sizes) -> Result:
    """Copies to the device, from pageable and from pinned memory, in 10^9 bytes a second."""
    result = Result()
    count = 2**12 if sizes.is_small else 2**26
    source = torch.ones(count)
    pinned = source.pin_memory() if sizes.device.can_pin else None
    target = torch.empty(count, device=sizes.device.name)
    for name, memory in (("pageable", source), ("pinned", pinned)):
        if memory is None:
            result.notes.append(f"{name}: {sizes.device.name} has no such memory")
            continue
        seconds = []
        for _ in range(3 + sizes.rounds):
            sizes.device.synchronize()
            begin = time.perf_counter()
            target.copy_(memory, non_blocking=True)
            sizes.device.synchronize()
            seconds.append(time.perf_counter() - begin)
        row = spread([count * 4 / value / 1e9 for value in seconds[3:]])
        result.rows.append(
            {"from": name, "GB/s": f"{row.median:.1f} ({row.low:.1f} to {row.high:.1f})"}
        )
        result.figures[f"{name}: gb_s"] = row.median
    return result


def feed(sizes: Sizes) -> Result:
    """Batches of 12 MiB: moved when their step comes, ahead of it, or gathered on the device."""
    on_host = {"resident": {"where": "host"}}
    ways = {
        "on the host, .to()": on_host,
        "on the host, pinned ahead": {**on_host, "pinned": {}},
        "on the device": RESIDENT,
        "on the device again": RESIDENT,
    }
    return compared(images, ways, sizes)


def graph(sizes: Sizes) -> Result:
    """Short kernels: as they come, with a fused optimizer, and as one graph."""
    ways = {
        "plain": RESIDENT,
        "plain again": RESIDENT,
        "fused": {**RESIDENT, **FUSED},
        "cuda_graph": {**RESIDENT, "cuda_graph": {}},
    }
    return compared(mlp, ways, sizes)


class _Tf32:
    """Matrix products in TF32 inside the block."""

    def __enter__(self) -> None:
        self._before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self._before)


def precision(sizes: Sizes) -> Result:
    """A decoder in float32, TF32, under autocast, and with bfloat16 weights and masters."""
    base = {**RESIDENT, **FUSED}
    ways = {
        "float32": base,
        "TF32": base,
        "autocast bf16": {**base, "autocast": {"dtype": "bf16"}},
        "autocast fp16": {**base, "autocast": {"dtype": "fp16"}},
        "master_weights": {**base, "master_weights": {}},
    }
    return compared(decoder, ways, sizes, {"TF32": _Tf32})


def compile_(sizes: Sizes) -> Result:
    """A decoder with bfloat16 weights, compiled as a whole and by blocks."""
    base = {**RESIDENT, **FUSED, "master_weights": {}}
    ways = {
        "not compiled": base,
        "blocks": {**base, "compile": {"region": "blocks"}},
        "model": {**base, "compile": {}},
    }
    return compared(decoder, ways, sizes)


def compile_loss(sizes: Sizes) -> Result:
    """A decoder with bfloat16 weights, compiled with its loss, and that as one graph."""
    base = {**RESIDENT, **FUSED, "master_weights": {}}
    graphed = {**RESIDENT, "master_weights": {}, "cuda_graph": {}}
    ways = {
        "not compiled": base,
        "loss": {**base, "compile": {"region": "loss"}},
        "loss and cuda_graph": {**graphed, "compile": {"region": "loss"}},
    }
    return compared(decoder, ways, sizes)


def memory(sizes: Sizes) -> Result:
    """Peak bytes of a decoder's step under what is said to save some."""
    base = {**RESIDENT, **FUSED}
    ways = {
        "plain": base,
        "foreach": {**RESIDENT, "optimizer": {"implementation": "foreach"}},
        "micro_batch": {**base, "micro_batch": {"size": 2}},
        "autocast": {**base, "autocast": {}},
        "master_weights": {**base, "master_weights": {}},
        "cuda_graph": {**RESIDENT, "cuda_graph": {}},
    }
    return compared(decoder, ways, sizes)


def attention(sizes: Sizes) -> Result:
    """Forward and backward of causal attention in bfloat16, by each kernel that torch has."""
    shape = (1, 2, 16, 8) if sizes.is_small else (8, 12, 1024, 64)
    given = [
        torch.randn(shape, device=sizes.device.name, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    result = Result()
    kernels = {
        "math": SDPBackend.MATH,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
    }
    for name, kernel in kernels.items():
        before = _held(sizes.device)
        try:
            seconds = [_attend(given, kernel, sizes.device) for _ in range(3 + 5 * sizes.rounds)]
        except RuntimeError as error:
            result.notes.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        row = spread([value * 1e3 for value in seconds[3:]])
        peak = sizes.device.peak_bytes() - before
        result.rows.append(
            {
                "kernel": name,
                "ms": f"{row.median:.3f} ({row.low:.3f} to {row.high:.3f})",
                "peak MiB": round(peak / _MIB),
            }
        )
        result.figures[f"{name}: ms"] = row.median
        result.figures[f"{name}: peak_bytes"] = peak
    return result


def _attend(given: list[torch.Tensor], kernel: SDPBackend, device: Device) -> float:
    device.synchronize()
    begin = time.perf_counter()
    with sdpa_kernel(kernel):
        mixed = nn.functional.scaled_dot_product_attention(*given, is_causal=True)
    mixed.sum().backward()
    device.synchronize()
    return time.perf_counter() - begin


PARTS: dict[str, Callable[[Sizes], Result]] = {
    "copies": copies,
    "feed": feed,
    "graph": graph,
    "precision": precision,
    "attention": attention,
    "compile": compile_,
    "compile-loss": compile_loss,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    sizes = Sizes(
        device=device_of(args.device),
        rounds=2 if args.quick else 8,
        turn_s=0.02 if args.quick else 1.0,
        is_small=args.quick,
    )
    result = PARTS[args.part](sizes)
    document = {"figures": result.figures, "rows": result.rows, "notes": result.notes}
    json.dump(document, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
