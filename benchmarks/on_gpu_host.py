"""What a machine with a GPU is, and what it does at most: versions, products, copies."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import psutil
import torch
from torch.nn.attention import SDPBackend

from benchmarks.gpu_rows import state
from benchmarks.gpu_turns import Sizes, attempted, memory
from hotlap.host.facts import Host
from hotlap.lab.scratch import probe

GPT_PRODUCTS = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50304))
MLP_PRODUCTS = ((784, 512), (512, 512), (512, 10))
_CALLS = 20
"""Products in a graph: a launch is nothing beside them."""


def env(sizes: Sizes) -> None:
    """Versions, the device, what is missing, and whether trials get a view of the files."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "host": asdict(Host.detect()),
        "memory_bytes": psutil.virtual_memory().total,
        "available_bytes": psutil.virtual_memory().available,
        "missing": missing(),
        "variables": {k: v for k, v in os.environ.items() if k.startswith(("CUDA", "TORCH"))},
    }
    for name in ("triton", "transformer_engine", "xformers", "torchao", "liger_kernel"):
        found[name] = importlib.util.find_spec(name) is not None
    if sizes.is_cuda:
        found["device"] = str(torch.cuda.get_device_properties(sizes.device.name))
        found["cuda"], found["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()
        torch.ones(1, device=sizes.device.name)
        found |= {"state": state(), **memory(sizes)}
    order = attempted("order of attention's kernels", _attention_order, sizes)
    sizes.rows.add(**found, attention_order=order)
    protection = attempted("a view of the files", lambda: asdict(probe()), sizes)
    found |= {"trials": protection, "attention_order": order}
    sizes.rows.add(trials=protection)
    if sizes.out is not None:
        (sizes.out / "env.json").write_text(json.dumps(found, indent=2, default=str) + "\n")


def _attention_order() -> list[str]:
    """Return torch's kernels of attention in the order in which it tries them."""
    known = {value: name for name, value in SDPBackend.__members__.items()}
    values = {int(value): name for value, name in known.items()}
    return [values.get(int(each), str(each)) for each in torch._C._get_sdp_priority_order()]


def missing() -> list[str]:
    """Return what hotlap and its tests need and what is not installed."""
    try:
        listed = importlib.metadata.requires("hotlap") or []
    except importlib.metadata.PackageNotFoundError:
        listed = [
            "torch",
            "numpy",
            "safetensors",
            "rich",
            "cyclopts>=4",
            "psutil",
            "xxhash",
            "jinja2",
        ]
    needed = [re.split(r"[<>=\[ ;]", text)[0] for text in listed if "extra ==" not in text]
    modules = {"pillow": "PIL"}
    return [
        name
        for name in (*needed, "docstring_parser", "rich_rst", "pytest", "pillow")
        if importlib.util.find_spec(modules.get(name, name)) is None
    ]


def ceilings(sizes: Sizes) -> None:
    """Products of random numbers, forward and both backwards, and copies, in graphs."""
    tokens = 64 if sizes.is_small else 32 * 1024
    large, narrow = (64, 32) if sizes.is_small else (8192, 50304)
    kinds = [("8192 cubed", large, large, large, torch.bfloat16)]
    for inner, outer in GPT_PRODUCTS:
        outer = min(outer, narrow)
        kinds.append((f"GPT {inner} to {outer}", tokens, inner, outer, torch.bfloat16))
    for dtype in (torch.float32, torch.bfloat16):
        for inner, outer in MLP_PRODUCTS:
            kinds.append((f"MLP {inner} to {outer}, {dtype}", 64, inner, outer, dtype))
    for name, rows, inner, outer, dtype in kinds:
        attempted(name, lambda k=(name, rows, inner, outer, dtype): _products(*k, sizes), sizes)
        if sizes.left_s() < 10:
            break
    attempted("copy on the device", lambda: _copied(sizes), sizes)


def _products(
    name: str, rows: int, inner: int, outer: int, dtype: torch.dtype, sizes: Sizes
) -> None:
    device = sizes.device.name
    given = torch.randn(rows, inner, device=device, dtype=dtype)
    weight = torch.randn(outer, inner, device=device, dtype=dtype)
    gradient = torch.randn(rows, outer, device=device, dtype=dtype)
    works: dict[str, Callable[[], Any]] = {
        "forward": lambda: given @ weight.t(),
        "to inputs": lambda: gradient @ weight,
        "to weights": lambda: gradient.t() @ given,
    }
    for which, work in works.items():
        seconds = _seconds(work, sizes)
        rates = [2 * rows * inner * outer / each / 1e12 for each in seconds]
        best, middle = max(rates), median(rates)
        micro = median(seconds) * 1e6
        sizes.rows.add(way=name, which=which, tflops=middle, best_tflops=best, us=micro)


def _copied(sizes: Sizes) -> None:
    count = 2**12 if sizes.is_small else 2**28
    source = torch.randn(count, device=sizes.device.name)
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source), sizes)
    rates = [2 * 4 * count / each / 1e9 for each in seconds]
    sizes.rows.add(way="copy on the device", gb_s=median(rates), best_gb_s=max(rates))


def _seconds(work: Callable[[], Any], sizes: Sizes) -> list[float]:
    """Return seconds of one call, several times."""

    def calls() -> None:
        for _ in range(_CALLS):
            work()

    run = calls
    if sizes.is_cuda:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            calls()
        run = graph.replay
    found = []
    for _ in range(2 + 3 * sizes.rounds):
        sizes.device.synchronize()
        begin = time.perf_counter()
        run()
        sizes.device.synchronize()
        found.append((time.perf_counter() - begin) / _CALLS)
    return found[2:]


PARTS: dict[str, Callable[[Sizes], None]] = {"env": env, "ceilings": ceilings}
