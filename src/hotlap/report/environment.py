"""`hotlap env` as text in a terminal and as JSON."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from hotlap.host.ceilings import Ceilings
from hotlap.host.facts import Host
from hotlap.host.problems import Problem
from hotlap.report.printable import printable

_GIB = 1024**3


def to_json(host: Host, ceilings: Sequence[Ceilings], found: Sequence[Problem]) -> dict[str, Any]:
    """Return the JSON document's data: torch, devices, ceilings, problems and the host's facts."""
    return {
        "torch": {"version": host.torch, "cuda": host.torch_cuda},
        "devices": devices(host),
        "ceilings": list(ceilings),
        "problems": list(found),
        "host": host,
    }


def devices(host: Host) -> list[dict[str, Any]]:
    """Return the CPU, and each GPU, as plain data."""
    cpu = {
        "kind": "cpu",
        "name": host.cpu,
        "cores": host.cores,
        "features": host.features,
        "memory_bytes": host.memory_bytes,
    }
    return [cpu, *({"kind": "cuda", **asdict(gpu)} for gpu in host.gpus)]


def show(
    console: Console, host: Host, ceilings: Sequence[Ceilings], found: Sequence[Problem]
) -> None:
    """Print the page."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in [*_facts(host), *_rates(ceilings)]:
        table.add_row(name, printable(text))
    console.print(table)
    console.print()
    if not found:
        console.print("no problems were found")
    for problem in found:
        console.print(f"! {printable(problem.text)}", style="yellow")
        if problem.why:
            console.print(f"  {printable(problem.why)}")
        console.print(f"  {printable(problem.remedy)}")


def _facts(host: Host) -> list[tuple[str, str]]:
    cuda = f"CUDA {host.torch_cuda}" if host.torch_cuda else "no CUDA"
    memory = f"{host.memory_available_bytes / _GIB:.1f} of {host.memory_bytes / _GIB:.1f} GiB free"
    load = f"{host.busy_cores:.1f} cores busy with other processes"
    if host.load_1min is not None:
        load += f", load {host.load_1min:.1f} over the last minute"
    compiler = f"{host.compiler} ({host.compiler_version})" if host.compiler else "none"
    return [
        ("system", host.system),
        ("python", host.python),
        ("torch", f"{host.torch} ({cuda})" if host.torch else "none"),
        ("cpu", f"{host.cpu}, {host.cores} of {host.cores_total} cores usable"),
        ("features", " ".join(host.features) or "none that matter"),
        ("memory", memory),
        ("compiler", compiler),
        *(
            (
                "gpu",
                f"{gpu.name}, {gpu.memory_free_bytes / _GIB:.1f} of "
                f"{gpu.memory_bytes / _GIB:.1f} GiB free, compute capability "
                f"{gpu.compute_capability}, driver {gpu.driver}",
            )
            for gpu in host.gpus
        ),
        *_hidden(host),
        ("load", load),
    ]


def _hidden(host: Host) -> list[tuple[str, str]]:
    given = host.cuda_visible_devices
    if given is None:
        return []
    text = f"CUDA_VISIBLE_DEVICES is '{given}'"
    return [("gpus", f"{text}: {host.gpus_hidden} hidden" if host.gpus_hidden else text)]


def _rates(ceilings: Sequence[Ceilings]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for rate in ceilings:
        where = f"on {rate.threads} threads" if rate.device == "cpu" else f"on {rate.device}"
        products = (
            f"{_number(rate.fp32_gflops)} GFLOP/s float32, {_number(rate.bf16_gflops)} bfloat16, "
            f"{_number(rate.fp16_gflops)} float16"
        )
        text = f"{products}, copy {_number(rate.copy_gb_s)} GB/s {where}"
        if rate.device != "cpu":
            text += (
                f", to it {_number(rate.to_device_pinned_gb_s)} GB/s from pinned memory, "
                f"{_number(rate.to_device_pageable_gb_s)} from other"
            )
        loads = {rate.load_of(name) for name in rate.loads} or {rate.busy_cores}
        text += f"; best measured, with {_span(loads)} cores busy with other processes"
        lines.append(("ceilings", text))
    return lines


def _span(loads: Collection[float]) -> str:
    low, high = f"{min(loads):.1f}", f"{max(loads):.1f}"
    return low if low == high else f"{low} to {high}"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,.0f}"
