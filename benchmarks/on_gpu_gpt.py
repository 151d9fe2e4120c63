"""GPT-2 (124M, 1024 tokens a sample) on a GPU: tokens a second and the share of its peak.

`gpt` measures the loop that an expert writes (autocast, model and loss compiled together, fused
AdamW, text on the device) at several batches, and the engine's best plan. `gpt-ladder` changes one
thing of that plan at a time. Ways run one after another, since two do not fit; no loss is read.
What they compile is compiled before, by processes beside each other.

With `NANOGPT=FILE`, a copy of nanoGPT's model.py, its loop is measured, too: batch 12 as by default
and larger ones, with one update for each batch as in its own bench.py.
"""

import dataclasses
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks import gpt_by_engine, gpt_by_hand
from benchmarks.gpu_turns import FUSED, RESIDENT, Engine, Sizes, Tf32, Way, attempted, forget, tell

plain, recipe = gpt_by_hand.plain, gpt_by_engine.recipe
PEAKS = (("H100 PCIe", 756e12), ("H100", 989e12), ("H200", 989e12), ("A100", 312e12))
"""Part of a device's name -> operations a second in bfloat16, dense, as its maker says."""
NANOGPT = os.environ.get("NANOGPT")
_GIB_A_SAMPLE = 0.65
"""What the loops by hand take, about; the engine takes less."""
TINY = plain.Config(layers=1, heads=2, width=32, block=32)
STEPS = 10**6
MASTERS = {**FUSED, "master_weights": {}}
BEST = {**MASTERS, "compile": {"region": "loss"}, "pinned": {}}
CHUNKS = {**BEST, "chunked_loss": {"rows": 16384}}
SHORT = {**CHUNKS, "compile": {"region": "loss", "short_gelu": True}}
# Under a graph the optimizer's technique gives way.
GRAPHED = {**{name: SHORT[name] for name in SHORT if name != "optimizer"}, "cuda_graph": {}}
TUNED = {"compile": {"region": "loss", "tune_kernels": True}}


@dataclass(frozen=True)
class Rung:
    """One way, and the seconds that it takes on a large GPU."""

    name: str
    price_s: float
    batch: int
    plan: dict[str, Any] | None = None
    """None for the loop by hand."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What else of the task is another."""
    on_device: bool = False
    """Windows side by side, gathered on the device, in place of ones read from the text."""
    keeps_trace: bool = False
    is_peer: bool = False
    """nanoGPT's model, where there is a copy of it; its loop, too, if there is no plan."""


HEADLINE = (
    # First: once a process was profiled, its graphs take longer to launch.
    Rung("engine on nanoGPT, batch 64, in a graph", 25, 64, GRAPHED, is_peer=True),
    Rung("nanoGPT, batch 12", 15, 12, is_peer=True),
    Rung("engine on nanoGPT, batch 32", 20, 32, BEST, is_peer=True),
    Rung("nanoGPT, batch 32", 15, 32, is_peer=True),
    Rung("engine on nanoGPT, batch 64", 25, 64, BEST, is_peer=True),
    Rung("engine on nanoGPT, batch 64, loss in chunks", 25, 64, CHUNKS, is_peer=True),
    Rung(
        "engine on nanoGPT, batch 64, chunks, short GELU",
        25,
        64,
        SHORT,
        is_peer=True,
        keeps_trace=True,
    ),
    Rung("nanoGPT, batch 64", 20, 64, is_peer=True),
    Rung("engine on nanoGPT, batch 128, chunks, short GELU", 30, 128, SHORT, is_peer=True),
    Rung("nanoGPT, batch 128", 30, 128, is_peer=True),
    Rung("engine, masters, loss compiled, batch 32", 25, 32, BEST),
    Rung("by hand, batch 32", 25, 32),
    Rung("engine on nanoGPT, batch 32, again", 20, 32, BEST, is_peer=True),
    Rung("nanoGPT, batch 12, again", 15, 12, is_peer=True),
)
"""Prices are without compiling, which is done before."""
LADDER = (
    Rung("masters, loss compiled", 60, 32, BEST),
    Rung("autocast", 25, 32, {**FUSED, "autocast": {}}),
    Rung("masters", 25, 32, MASTERS),
    Rung("masters, model compiled", 80, 32, {**MASTERS, "compile": {}}),
    Rung("autocast, loss compiled", 60, 32, {**FUSED, "autocast": {}, "compile": BEST["compile"]}),
    Rung("no schedule", 30, 32, BEST, {"schedule": None}),
    Rung("no clipping", 30, 32, BEST, {"clip_norm": None}),
    Rung("windows on the device", 30, 32, {**BEST, **RESIDENT}, on_device=True),
    Rung(
        "none of the three",
        30,
        32,
        {**BEST, **RESIDENT},
        {"schedule": None, "clip_norm": None},
        on_device=True,
    ),
    Rung(
        "graph, loss compiled",
        45,
        32,
        {"master_weights": {}, "cuda_graph": {}, "compile": BEST["compile"]},
    ),
    Rung("attention cudnn", 60, 32, {**BEST, "attention": {"kernel": "cudnn"}}),
    Rung("attention flash", 60, 32, {**BEST, "attention": {"kernel": "flash"}}),
    Rung("chunked loss, not compiled", 40, 32, {**MASTERS, "chunked_loss": {"rows": 16384}}),
    Rung("loss in chunks", 30, 32, CHUNKS),
    Rung("loss in chunks, short GELU", 30, 32, SHORT),
    Rung("kernels tuned", 200, 32, {**BEST, **TUNED}),
    Rung("batch 16", 60, 16, BEST),
    Rung("masters, loss compiled, again", 30, 32, BEST),
)


class WithLoss(nn.Module):
    """The model and its loss, to be compiled together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return plain.loss_of(self.model, inputs, targets)


class ByHand:
    """The loop that an expert writes; its loss is not read."""

    def __init__(self, config: Any, batch: int, sizes: Sizes) -> None:
        torch.manual_seed(0)
        self.device, self.batch = torch.device(sizes.device.name), batch
        text = gpt_by_hand.load(gpt_by_hand.find(), train=True)
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(self.device)
        self.window = torch.arange(config.block + 1, device=self.device)
        self.model = plain.GPT(config).to(self.device)
        self.loss = WithLoss(self.model)
        self.loss.compile()
        self.parameters = list(self.model.parameters())
        self.optimizer = gpt_by_hand.optimizer_over(self.parameters)
        self.last = len(self.text) - config.block
        self.number = 0

    def __call__(self, count: int) -> None:
        for _ in range(count):
            rate = plain.learning_rate(self.number, gpt_by_hand.PEAK, 100, STEPS)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.number += 1
            starts = torch.randint(self.last, (self.batch, 1), device=self.device)
            tokens = self.text[starts + self.window]
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                loss = self.loss(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def nanogpt(config: Any) -> Any:
    """Return nanoGPT's own model."""
    name = "nanogpt_model"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, NANOGPT or "")
        assert found is not None and found.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[name])
    module = sys.modules[name]
    options = module.GPTConfig(
        block_size=config.block, vocab_size=config.vocabulary, n_layer=config.layers,
        n_head=config.heads, n_embd=config.width, dropout=0.0, bias=False,
    )  # fmt: skip
    return module.GPT(options)


def nanogpt_loss(model: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return model(inputs, targets.contiguous())[1]


class NanoGpt:
    """The loop of nanoGPT's train.py around its own model; its loss is not read."""

    def __init__(self, config: Any, batch: int, sizes: Sizes) -> None:
        torch.manual_seed(0)
        self.device, self.batch, self.block = sizes.device.name, batch, config.block
        text = gpt_by_hand.load(gpt_by_hand.find(), train=True)
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        made = nanogpt(config).to(self.device)
        kind = sizes.device.kind
        self.optimizer = made.configure_optimizers(0.1, 6e-4, (0.9, 0.95), kind)
        self.scaler = torch.amp.GradScaler(kind, enabled=False)
        self.parameters = list(made.parameters())
        self.model = torch.compile(made)
        self.number = 0
        self.given = self._batch()

    def _batch(self) -> list[torch.Tensor]:
        starts = torch.randint(len(self.text) - self.block, (self.batch,)).tolist()
        given = []
        for shift in (0, 1):
            windows = (self.text[s + shift : s + shift + self.block].long() for s in starts)
            rows = torch.stack(list(windows))
            if self.device.startswith("cuda"):
                rows = rows.pin_memory()
            given.append(rows.to(self.device, non_blocking=True))
        return given

    def __call__(self, count: int) -> None:
        for _ in range(count):
            rate = plain.learning_rate(self.number, 6e-4, 100, STEPS)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.number += 1
            with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16):
                _, loss = self.model(*self.given)
            # The next batch is read while the device computes.
            self.given = self._batch()
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)


def operations(config: Any) -> int:
    """Return the operations that training takes for a token: 6 a weight, and attention's."""
    with torch.device("meta"):
        model = plain.GPT(config)
    weights = sum(p.numel() for p in model.parameters()) - model.positions.weight.numel()
    return 6 * weights + 12 * config.layers * config.width * config.block


def peak_of(sizes: Sizes) -> float | None:
    """Return what the device does at most in bfloat16, None where nobody said."""
    if not sizes.is_cuda:
        return None
    name = torch.cuda.get_device_name(sizes.device.name)
    return next((peak for part, peak in PEAKS if part in name), None)


def climb(rungs: tuple[Rung, ...], sizes: Sizes) -> None:
    """Measure one way after another, as far as the time goes."""
    size = "tiny" if sizes.is_small else "124m"
    plain.SIZES["tiny"] = TINY
    config = plain.SIZES[size]
    per_token, peak = operations(config), peak_of(sizes)
    sizes.rows.add(size=size, operations_a_token=per_token, peak=peak, tokens_a_sample=config.block)
    chosen = [rung for rung in rungs if not sizes.only or rung.name in sizes.only]
    if len(chosen) > 1:
        _compile_ahead(tuple(chosen), sizes)
    for rung in chosen:
        if rung.is_peer and NANOGPT is None:
            sizes.rows.add(way=rung.name, not_reached="NANOGPT names no copy of its model.py")
            continue
        price_s = rung.price_s / 10 if sizes.is_small else rung.price_s
        if sizes.left_s() < price_s:
            sizes.rows.add(way=rung.name, not_reached=f"it takes about {price_s:g} s")
            continue
        attempted(rung.name, lambda rung=rung: _measure(rung, size, per_token, peak, sizes), sizes)
        # What the next one compiles and holds is its own.
        torch.compiler.reset()
        forget()


def _compile_ahead(rungs: tuple[Rung, ...], sizes: Sizes) -> None:
    """Fill the cache of what is compiled, by processes that each take some steps of a way.

    As many run beside each other as fit into memory.
    """
    if not sizes.is_cuda or sizes.is_small:
        return
    begin, room = time.monotonic(), torch.cuda.mem_get_info(sizes.device.name)[0] / 2**30
    command = [sys.executable, "-m", "benchmarks.on_gpu", sizes.rows.part, "--device"]
    command += [sizes.device.name, "--rounds", "1", "--turn", "0.01", "--ways"]
    waiting = [rung for rung in rungs if _is_compiled_ahead(rung)]
    running: list[tuple[subprocess.Popen[bytes], int]] = []
    codes: list[int] = []
    # What is not compiled ahead is compiled when its turn comes.
    ends = time.monotonic() + min(sizes.left_s() / 3, 300.0)
    try:
        while (waiting or running) and time.monotonic() < ends:
            while waiting and (
                not running
                or (sum(batch for _, batch in running) + waiting[0].batch) * _GIB_A_SAMPLE < room
            ):
                rung = waiting.pop(0)
                started = subprocess.Popen([*command, rung.name], stdout=subprocess.DEVNULL)
                running.append((started, rung.batch))
            codes += [process.returncode for process, _ in running if process.poll() is not None]
            running = [each for each in running if each[0].returncode is None]
            time.sleep(0.1)
    finally:
        for process, _ in running:
            process.kill()
            process.wait()
    late = [rung.name for rung in waiting]
    seconds = time.monotonic() - begin
    sizes.rows.add(way="compiled ahead", seconds=seconds, codes=codes, not_reached=late)


def _is_compiled_ahead(rung: Rung) -> bool:
    if rung.is_peer and NANOGPT is None:
        return False
    plan = rung.plan or {}
    compiles = rung.plan is None or "compile" in plan
    # The same program without a graph is compiled beside it.
    is_other = "cuda_graph" not in plan and not rung.name.endswith(", again")
    return compiles and is_other


def _measure(rung: Rung, size: str, per_token: int, peak: float | None, sizes: Sizes) -> None:
    begin = time.monotonic()
    # In small all are alike, so that most find what they compile in the cache.
    batch = 2 if sizes.is_small else rung.batch
    config = plain.SIZES[size]
    make: Callable[[], Any]
    if rung.is_peer and rung.plan is None:
        make = lambda: NanoGpt(config, batch, sizes)  # noqa: E731
    elif rung.plan is None:
        make = lambda: ByHand(config, batch, sizes)  # noqa: E731
    else:
        make = lambda: Engine(_task(rung, size, batch), rung.plan or {}, sizes)  # noqa: E731
    # nanoGPT's loop allows TF32.
    way = Way(rung.name, make, sizes, Tf32 if rung.is_peer and rung.plan is None else None)
    values = [way.turn() for _ in range(min(4, sizes.rounds))]
    tokens = batch * config.block
    tell(sizes, rung.name, values, tokens)
    rate = tokens * 1e3 / min(values)
    used = None if peak is None else rate * per_token / peak
    sizes.rows.add(way=rung.name, batch=batch, best_tokens_per_s=rate, best_share_of_peak=used)
    trace = f"trace-{sizes.rows.part}" if rung.keeps_trace else None
    sizes.rows.add(way=rung.name, **way.described(trace), took_s=time.monotonic() - begin)
    way.end()


def _task(rung: Rung, size: str, batch: int) -> Any:
    made = recipe.task(size=size, steps=STEPS, batch_size=batch)
    changes = {"held_out": None, **rung.changes}
    if rung.is_peer:
        config = plain.SIZES[size]
        changes |= {"model": lambda: nanogpt(config), "loss": nanogpt_loss}
    if rung.on_device:
        text = gpt_by_hand.load(gpt_by_hand.find(), train=True)
        block = plain.SIZES[size].block
        changes["data"] = recipe.Windows(text, block, stride=block)
    return dataclasses.replace(made, **changes)


PARTS: dict[str, Callable[[Sizes], None]] = {
    "gpt": lambda sizes: climb(HEADLINE, sizes),
    "gpt-ladder": lambda sizes: climb(LADDER, sizes),
}
