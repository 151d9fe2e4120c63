"""`Ceilings`: measures in a fresh process how fast a device multiplies matrices and copies.

They are measured by a fresh process, `python -m hotlap.host.ceilings`, so that whoever asks imports
no torch and starts no threads. A ceiling is a lower bound of what the hardware can do: others that
use the machine at the same time lower it, so it carries the load under which it was measured. The
best that was ever seen of a device under a torch is kept in the user's cache.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from statistics import median
from typing import Any

from hotlap.errors import RunError

_LIMIT_S = 60.0
"""A machine on which importing torch takes longer than this is not one to measure."""
_SHARE_S = 0.5
"""Seconds for each measurement."""
_SMALL = 256
"""Rows of a product that even an emulated format computes in some tenths of a second."""
_TOO_SLOW_S = 0.5
"""A single product that takes longer is left out: the rate of the small one stands."""
_RATES = (
    *("fp32_gflops", "bf16_gflops", "fp16_gflops", "copy_gb_s"),
    *("to_device_pinned_gb_s", "to_device_pageable_gb_s"),
)


@dataclass(frozen=True)
class Ceilings:
    """The best rates seen on one device."""

    device: str
    """`cpu` or `cuda`."""
    fp32_gflops: float | None
    """Matrix products in float32, TF32 off; None if it could not be measured."""
    bf16_gflops: float | None
    """Matrix products in bfloat16."""
    copy_gb_s: float | None
    """Bytes read plus bytes written, in 10^9 a second, by a copy far larger than the caches."""
    threads: int
    """Threads that torch computed with."""
    busy_cores: float
    """Cores that other processes kept busy just before."""
    seconds: float
    """What measuring took, the start of the process included."""
    fp16_gflops: float | None = None
    """Matrix products in float16."""
    to_device_pinned_gb_s: float | None = None
    """Copies to the device from pinned memory, in 10^9 bytes a second; None on a CPU."""
    to_device_pageable_gb_s: float | None = None
    """Copies to the device from memory as it usually is."""
    loads: Mapping[str, float] = field(default_factory=dict)
    """Name of a rate -> cores that others kept busy when it was measured, where that is known."""
    medians: Mapping[str, float] = field(default_factory=dict)
    """Name of a rate -> that of the median call beside the fastest one, where that is known."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ceilings":
        """Read back what `to_json` wrote, by an older hotlap too.

        Raises:
            KeyError: a rate or fact is missing that every hotlap wrote.
        """
        fixed = [item for item in fields(cls) if item.default is MISSING]
        fixed = [item for item in fixed if item.default_factory is MISSING]
        needed = {item.name: data[item.name] for item in fixed}
        return cls(
            **needed,
            **{
                item.name: data[item.name]
                for item in fields(cls)
                if item.name in data and item.name not in needed
            },
        )

    def load_of(self, rate: str) -> float:
        """Return the cores that others kept busy when that rate was measured."""
        return self.loads.get(rate, self.busy_cores)

    def merge_fastest(self, other: "Ceilings") -> "Ceilings":
        """Return the higher rate of each with its load; the rest is from the faster in fp32."""
        first, second = sorted((self, other), key=lambda one: one.fp32_gflops or 0, reverse=True)
        rates: dict[str, float | None] = {}
        loads: dict[str, float] = {}
        medians: dict[str, float] = {}
        for name in _RATES:
            holder = max((first, second), key=lambda one: getattr(one, name) or 0)
            rates[name] = getattr(holder, name)
            if rates[name] is not None:
                loads[name] = holder.load_of(name)
            if name in holder.medians:
                medians[name] = holder.medians[name]
        return replace(first, **rates, loads=loads, medians=medians)


def measure(*, busy_cores: float, device: str = "cpu") -> Ceilings:
    """Measure the ceilings of a device in a fresh process. Takes three to five seconds on a CPU.

    Args:
        busy_cores: cores that other processes keep busy right now, see `Host.busy_cores`.
        device: `cpu` or `cuda`.

    Raises:
        RunError: the process failed, for instance because there is no torch.
    """
    start = time.perf_counter()
    # -P keeps files of the current folder from being imported in place of torch or numpy.
    command = [sys.executable, "-P", "-W", "ignore", "-m", "hotlap.host.ceilings", device]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"measuring how fast {device} computes and copies took longer than {_LIMIT_S:g} s and "
            "was stopped. Stop other processes and try again, or use `hotlap env --quick` to skip "
            "it."
        ) from None
    seconds = time.perf_counter() - start
    return parse(done.stdout, done.stderr, busy_cores=busy_cores, seconds=seconds)


def parse(output: str, errors: str, *, busy_cores: float, seconds: float) -> Ceilings:
    """Read what the measuring process printed.

    Raises:
        RunError: it printed no result; the message ends with its last line of errors.
    """
    try:
        data = json.loads(output.strip().splitlines()[-1])
        loads = {name: busy_cores for name in _RATES if data.get(name) is not None}
        return Ceilings.from_json(
            {**data, "busy_cores": busy_cores, "seconds": seconds, "loads": loads}
        )
    except (IndexError, ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["no output"])[-1]
        raise RunError(
            f"the speed of matrix products and copies could not be measured: {last}. Use `hotlap "
            "env --quick` to skip that measurement."
        ) from None


def _main(device: str) -> None:
    import torch

    size, copied = (1024, 1 << 27) if device == "cpu" else (8192, 1 << 30)
    torch.backends.cuda.matmul.allow_tf32 = False
    result: dict[str, Any] = {"device": device, "threads": torch.get_num_threads()}
    medians = result["medians"] = {}

    def note(name: str, rates: tuple[float, float] | None) -> None:
        result[name] = None if rates is None else rates[0]
        if rates is not None:
            medians[name] = rates[1]

    formats = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    with torch.inference_mode():
        for name, dtype in formats.items():
            note(f"{name}_gflops", _product_gflops(torch, size, dtype, device))
        note("copy_gb_s", _copy_gb_s(torch, copied, device))
        if device != "cpu":
            for name, is_pinned in (("pinned", True), ("pageable", False)):
                note(f"to_device_{name}_gb_s", _to_device_gb_s(torch, device, is_pinned))
    print(json.dumps(result))  # noqa: T201


_Rates = tuple[float, float] | None
"""By the fastest call and by the median one; None if it could not be measured."""


def _product_gflops(torch: Any, size: int, dtype: Any, device: str) -> _Rates:
    rate = _rate_of_products(torch, _SMALL, dtype, device)
    # A format that the hardware does not know is a hundred times slower.
    if rate is None:
        return None
    # On a device of its own a small product is all launch, and says nothing of a large one. Every
    # CPU knows float32: if that is slow here, something disturbed the moment.
    may_be_emulated = device == "cpu" and dtype != torch.float32
    if may_be_emulated and 2 * size**3 / (rate[0] * 1e9) > _TOO_SLOW_S:
        return rate
    return _rate_of_products(torch, size, dtype, device)


def _rate_of_products(torch: Any, size: int, dtype: Any, device: str) -> _Rates:
    try:
        # Of equal numbers a GPU draws less power, and computes faster than of any that occur.
        left = torch.randn(size, size, device=device).to(dtype)
        out = torch.empty_like(left)
        share = _SHARE_S if size > _SMALL else 0.1
        seconds = _seconds(torch, lambda: torch.mm(left, left, out=out), device, share)
    except RuntimeError:
        return None
    return _per_second(2 * size**3, seconds)


def _copy_gb_s(torch: Any, size: int, device: str) -> _Rates:
    try:
        source = torch.randn(size // 4, dtype=torch.float32, device=device)
        out = torch.empty_like(source)
        seconds = _seconds(torch, lambda: out.copy_(source), device)
    except RuntimeError:
        return None
    return _per_second(2 * size, seconds)


def _to_device_gb_s(torch: Any, device: str, is_pinned: bool) -> _Rates:
    size = 1 << 28
    try:
        source = torch.ones(size, dtype=torch.uint8, pin_memory=is_pinned)
        out = torch.empty(size, dtype=torch.uint8, device=device)
        seconds = _seconds(torch, lambda: out.copy_(source, non_blocking=is_pinned), device)
    except RuntimeError:
        return None
    return _per_second(size, seconds)


def _per_second(count: int, seconds: list[float]) -> tuple[float, float]:
    """Return thousand millions a second, by the fastest call and by the median one."""
    return count / min(seconds) / 1e9, count / median(seconds) / 1e9


def _seconds(
    torch: Any, work: Callable[[], Any], device: str, share_s: float = _SHARE_S
) -> list[float]:
    """Return the seconds of each of at least three calls, the first one left out."""
    found: list[float] = []
    synchronize = torch.cuda.synchronize if device == "cuda" else None
    end = time.perf_counter() + share_s
    while len(found) < 4 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        if synchronize is not None:
            synchronize()
        found.append(time.perf_counter() - start)
    return found[1:]


if __name__ == "__main__":
    _main(sys.argv[1])
