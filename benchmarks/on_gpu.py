"""What a GPU gains from each technique, part by part; `python -m benchmarks gpu` runs them.

    python -m benchmarks.on_gpu PART [--quick] [--device cuda] [--rows FILE] [--out DIR] [--limit S]
        [--ways WAY ...] [--turn S] [--rounds N]

writes one line of JSON a row, each as soon as it is measured. Ways take turns on one device, each
in both orders; times are of whole turns with the device waited for at both ends.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset

import hotlap
from benchmarks.gpu_rows import Rows, end_with_parent
from benchmarks.gpu_turns import FUSED, RESIDENT, Sizes, Tf32, attempted, compared, timed_mark
from hotlap.device.accelerator import device_of
from hotlap.lab.statistics import spread


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


def copies(sizes: Sizes) -> None:
    """Copies to the device, from pageable and from pinned memory, in 10^9 bytes a second."""
    count = 2**12 if sizes.is_small else 2**26
    source = torch.ones(count)
    pinned = source.pin_memory() if sizes.device.can_pin else None
    target = torch.empty(count, device=sizes.device.name)
    for name, memory in (("pageable", source), ("pinned", pinned)):
        if memory is None:
            sizes.rows.add(way=name, failed=f"{sizes.device.name} has no such memory")
            continue
        seconds = []
        for _ in range(3 + sizes.rounds):
            sizes.device.synchronize()
            begin = time.perf_counter()
            target.copy_(memory, non_blocking=True)
            sizes.device.synchronize()
            seconds.append(time.perf_counter() - begin)
        row = spread([count * 4 / value / 1e9 for value in seconds[3:]])
        sizes.rows.add(way=name, gb_s=row.median, gb_s_interval=[row.low, row.high])


def feed(sizes: Sizes) -> None:
    """Batches of 12 MiB: moved when their step comes, ahead of it, or gathered on the device."""
    on_host = {"resident": {"where": "host"}}
    ways = {
        "on the host, .to()": on_host,
        "on the host, pinned ahead": {**on_host, "pinned": {}},
        "on the device": RESIDENT,
        "on the device again": RESIDENT,
    }
    compared(images, ways, sizes)


def graph(sizes: Sizes) -> None:
    """Short kernels: as they come, with a fused optimizer, and as one graph."""
    ways = {
        "plain": RESIDENT,
        "plain again": RESIDENT,
        "fused": {**RESIDENT, **FUSED},
        "cuda_graph": {**RESIDENT, "cuda_graph": {}},
    }
    compared(mlp, ways, sizes)


def precision(sizes: Sizes) -> None:
    """A decoder in float32, TF32, under autocast, and with bfloat16 weights and masters."""
    base = {**RESIDENT, **FUSED}
    ways = {
        "float32": base,
        "TF32": base,
        "autocast bf16": {**base, "autocast": {"dtype": "bf16"}},
        "autocast fp16": {**base, "autocast": {"dtype": "fp16"}},
        "master_weights": {**base, "master_weights": {}},
    }
    compared(decoder, ways, sizes, {"TF32": Tf32})


def compile_(sizes: Sizes) -> None:
    """A decoder with bfloat16 weights, compiled as a whole and by blocks."""
    base = {**RESIDENT, **FUSED, "master_weights": {}}
    ways = {
        "not compiled": base,
        "blocks": {**base, "compile": {"region": "blocks"}},
        "model": {**base, "compile": {}},
    }
    compared(decoder, ways, sizes)


def compile_loss(sizes: Sizes) -> None:
    """A decoder with bfloat16 weights, compiled with its loss, and that as one graph."""
    base = {**RESIDENT, **FUSED, "master_weights": {}}
    graphed = {**RESIDENT, "master_weights": {}, "cuda_graph": {}}
    ways = {
        "not compiled": base,
        "loss": {**base, "compile": {"region": "loss"}},
        "loss and cuda_graph": {**graphed, "compile": {"region": "loss"}},
    }
    compared(decoder, ways, sizes)


def memory(sizes: Sizes) -> None:
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
    compared(decoder, ways, sizes)


def attention(sizes: Sizes) -> None:
    """Forward and backward of causal attention in bfloat16, by each kernel that torch has."""
    kernels = {
        "torch's choice": None,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    shapes = [(1, 2, 16, 8)] if sizes.is_small else [(8, 12, 1024, 64), (64, 12, 1024, 64)]
    for shape in shapes:
        for name, kernel in kernels.items():
            # The scores of the large shape would fill the device.
            if name == "math" and shape[0] > 8:
                continue
            way = f"{name}, batch {shape[0]}"
            attempted(way, lambda k=kernel, s=shape, w=way: _attention(w, k, s, sizes), sizes)


def _attention(
    way: str, kernel: SDPBackend | None, shape: tuple[int, ...], sizes: Sizes, calls: int = 20
) -> None:
    device = sizes.device.name
    query, key, value, gradient = (
        torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=number < 3)
        for number in range(4)
    )

    def both() -> None:
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(mixed, (query, key, value), gradient)

    found, on_device = [], []
    with nullcontext() if kernel is None else sdpa_kernel(kernel):
        for _ in range(1 + sizes.rounds):
            sizes.device.synchronize()
            begin, first = time.perf_counter(), timed_mark(sizes.device)
            for _ in range(calls):
                both()
            last = timed_mark(sizes.device)
            sizes.device.synchronize()
            found.append((time.perf_counter() - begin) / calls * 1e3)
            if first is not None:
                on_device.append(first.elapsed_time(last) / calls)
    row = spread(found[1:])
    events = {"events_ms": spread(on_device[1:]).median} if on_device else {}
    sizes.rows.add(way=way, ms=row.median, ms_interval=[row.low, row.high], **events)


PARTS: dict[str, str] = {
    "env": "benchmarks.on_gpu_host",
    "tests": "benchmarks.on_gpu_suite",
    "mlp": "benchmarks.on_gpu_lecture",
    "gpt": "benchmarks.on_gpu_gpt",
    "gpt-ladder": "benchmarks.on_gpu_gpt",
    "mlp-run": "benchmarks.on_gpu_lecture",
    "loss": "benchmarks.on_gpu_kernels",
    "launches": "benchmarks.on_gpu_kernels",
    "ceilings": "benchmarks.on_gpu_host",
    **dict.fromkeys(
        ("waits", "predicted", "too-large", "killed", "saving", "tuned", "stopped"),
        "benchmarks.on_gpu_runs",
    ),
}
"""Name of a part -> the module whose `PARTS` holds it, where that is not this one. Examples share
names of files, so that a process imports those of one part only."""

HERE: dict[str, Callable[[Sizes], None]] = {
    "graph": graph,
    "precision": precision,
    "attention": attention,
    "compile": compile_,
    "compile-loss": compile_loss,
    "feed": feed,
    "copies": copies,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, *HERE])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=Path, help="the file that rows go to; standard output")
    parser.add_argument("--out", type=Path, help="folder of what else is kept, as traces")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, about")
    parser.add_argument("--ways", nargs="+", default=[], metavar="WAY", help="of its ways, these")
    parser.add_argument("--turn", type=float, help="seconds of a turn")
    parser.add_argument("--rounds", type=int, help="turns of each way")
    args = parser.parse_args()
    if args.rows is not None:
        # Whoever goes on with these rows must not be disturbed by this process.
        end_with_parent()
    sizes = Sizes(
        device=device_of(args.device),
        rounds=args.rounds or (2 if args.quick else 8),
        turn_s=args.turn or (0.02 if args.quick else 1.0),
        is_small=args.quick,
        rows=Rows(args.rows, args.part),
        out=args.out,
        ends=time.monotonic() + args.limit,
        only=tuple(args.ways),
    )
    if args.part in PARTS:
        importlib.import_module(PARTS[args.part]).PARTS[args.part](sizes)
    else:
        HERE[args.part](sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
