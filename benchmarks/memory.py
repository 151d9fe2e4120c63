"""Will it fit: what is predicted against what is measured, and what each remedy does.

Measured is the most bytes of tensors that torch's allocator held at once above what it held before:
its own events on a CPU, `max_memory_allocated` on a GPU. Times are medians of single steps without
that measurement.
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.__main__ import Result
from benchmarks.peak import peak_bytes
from hotlap.engine.build import build
from hotlap.engine.memory.rehearsal import Sample, rehearse
from hotlap.engine.steps import steps_of
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.task import Task

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16 autocast": {"autocast": {"dtype": "bf16"}},
    "bf16 masters": {"master_weights": {}},
}
RECOMPUTES: dict[str, dict[str, Any]] = {
    "none": {},
    "whole": {"recompute": {"mode": "whole"}},
    "selective": {"recompute": {"mode": "selective"}},
}
REMEDIES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "micro_batch, a quarter": {"micro_batch": {"size": 0}},
    "recompute whole": RECOMPUTES["whole"],
    "recompute selective": RECOMPUTES["selective"],
    "recompute every other block": {"recompute": {"every": 2}},
    "chunked_loss": {"chunked_loss": {"rows": 256}},
    "autocast": PRECISIONS["bf16 autocast"],
    "master_weights": PRECISIONS["bf16 masters"],
    "optimizer foreach": {"optimizer": {"implementation": "foreach"}},
    "optimizer fused": {"optimizer": {"implementation": "fused"}},
    "recompute whole + chunked_loss": {**RECOMPUTES["whole"], "chunked_loss": {"rows": 256}},
}
STEPS = 3
_MIB = 2**20


class Block(nn.Module):
    """A transformer's: attention and two linear layers, each behind a normalisation."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attend(self.first(x)).chunk(3, dim=-1)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).flatten(2))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.second(x)))))


def mlp(scale: int) -> Task:
    """Return a task of linear layers, its batch small beside its weights."""

    def model() -> nn.Module:
        layers = [nn.Sequential(nn.Linear(w, 512 * scale), nn.ReLU()) for w in (784, *_wide(scale))]
        return nn.Sequential(*layers, nn.Linear(512 * scale, 10))

    return _task(model, torch.zeros(256, 784), 10, batch=128)


def _wide(scale: int) -> tuple[int, ...]:
    return (512 * scale,) * 3


def cnn(scale: int) -> Task:
    """Return a task of convolutions, nearly all of it activations."""

    def model() -> nn.Module:
        width = 16 * scale
        convolutions = [nn.Conv2d(n, width, 3, padding=1) for n in (1, *(width,) * 3)]
        blocks = [nn.Sequential(convolution, nn.ReLU()) for convolution in convolutions]
        return nn.Sequential(*blocks, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(width * 49, 10))

    return _task(model, torch.zeros(128, 1, 28, 28), 10, batch=64)


def words(scale: int) -> Task:
    """Return a small language model with a large vocabulary."""

    def model() -> nn.Module:
        width, classes = 64 * scale, 4000 * scale
        blocks = nn.Sequential(*[Block(width) for _ in range(4)])
        return nn.Sequential(nn.Embedding(classes, width), blocks, nn.Linear(width, classes))

    given = torch.zeros(64, 64 * scale, dtype=torch.int64)
    return _task(model, given, 0, batch=16)


TASKS: dict[str, Callable[[int], Task]] = {"mlp": mlp, "cnn": cnn, "words": words}


def _task(model: Callable[[], nn.Module], inputs: torch.Tensor, classes: int, batch: int) -> Task:
    targets = torch.arange(len(inputs)) % classes if classes else inputs
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(
            model(batch[0]).flatten(0, -2), batch[1].flatten()
        ),
        data=TensorDataset(inputs, targets),
        optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        batch_size=batch,
        steps=STEPS,
    )


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--scale N` (1 is small), `--device cpu|cuda`, `--rounds N`."""
    del host
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory")
    parser.add_argument("--scale", type=int, default=1 if quick else 2)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--rounds", type=int, default=1 if quick else 5)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    result = Result()
    for name, make in TASKS.items():
        task = make(args.scale)
        print(f"{name} ...", file=sys.stderr, flush=True)
        # Once for what only a process's first run makes.
        _taken(task, Plan(), args.device)
        for precision, narrow in PRECISIONS.items():
            for recompute, again in RECOMPUTES.items():
                plan = Plan({**narrow, **again})
                _add(result, task, plan, f"{name}: {precision}, {recompute}", args)
        for remedy, techniques in REMEDIES.items():
            _add(result, task, _plan(task, techniques), f"{name}: {remedy}", args)
        result.rows.append(_kept_gradients(task, f"{name}: gradients zeroed, kept", args))
    gaps = [abs(v) for key, v in result.figures.items() if key.endswith("off_by")]
    result.figures["largest_gap"] = max(gaps)
    result.notes.append(f"{len(gaps)} predictions, at most {max(gaps):.1%} off what was measured")
    result.notes.append("blank: the technique refused, and says why in the column beside")
    return result


def _plan(task: Task, techniques: dict[str, Any]) -> Plan:
    if "micro_batch" in techniques:
        return Plan({"micro_batch": {"size": task.batch_size // 4}})
    return Plan(techniques)


def _taken(task: Task, plan: Plan, device: str) -> Any:
    built = build(task, plan, device=device)
    for _ in steps_of(built):
        pass
    return built


def _add(result: Result, task: Task, plan: Plan, name: str, args: Any) -> None:
    row: dict[str, Any] = {"what": name}
    built = _taken(task, plan, args.device)
    refused = [proof["why"] for proof in built.applied.proofs() if proof["state"] != "applied"]
    if refused:
        blank = dict.fromkeys(("predicted MiB", "measured MiB", "off by", "ms/step"), "")
        result.rows.append({**row, **blank, "why not": refused[0]})
        return
    found = rehearse(task, plan, Sample.of(task), device=args.device, like=args.device).peak.bytes
    measured = peak_bytes(lambda: _drop(_taken(task, plan, args.device)), args.device)
    off, step_ms = found / measured - 1, _step_ms(task, plan, args)
    row["predicted MiB"] = f"{found / _MIB:.2f}"
    row["measured MiB"] = f"{measured / _MIB:.2f}"
    row |= {"off by": f"{off:+.1%}", "ms/step": f"{step_ms:.1f}", "why not": ""}
    result.rows.append(row)
    result.figures[f"{name}: measured_mib"] = measured / _MIB
    result.figures[f"{name}: off_by"] = off
    result.figures[f"{name}: ms_per_step"] = step_ms


def _drop(built: Any) -> None:
    del built


def _step_ms(task: Task, plan: Plan, args: Any) -> float:
    times = []
    for _ in range(args.rounds):
        begin = time.perf_counter()
        for step in steps_of(build(task, plan, device=args.device)):
            if args.device.startswith("cuda"):
                torch.cuda.synchronize()
            if step.number > 1:
                times.append(time.perf_counter() - begin)
            begin = time.perf_counter()
    return median(times) * 1e3


def _kept_gradients(task: Task, name: str, args: Any) -> dict[str, Any]:
    """Return the row of `zero_grad(set_to_none=False)`: gradients that are there all the time."""

    def work() -> None:
        built = build(task, Plan(), device=args.device)
        built.step.update.zero = lambda: built.optimizer.zero_grad(set_to_none=False)
        for _ in steps_of(built):
            pass

    work()
    measured = peak_bytes(work, args.device)
    blank = {"off by": "", "ms/step": "", "why not": "what torch did before 2.0"}
    return {"what": name, "predicted MiB": "", "measured MiB": f"{measured / _MIB:.2f}", **blank}
