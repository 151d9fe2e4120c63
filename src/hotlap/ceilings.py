"""Ceilings: the fastest matrix products and copies that a machine is seen to do.

They are measured by a fresh process, `python -m hotlap.ceilings`, so that whoever asks imports no
torch and starts no threads. A ceiling is a lower bound of what the hardware can do: others that
use the machine at the same time lower it, so it carries the load under which it was measured.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hotlap.errors import RunError

_LIMIT_S = 60.0
"""A machine on which importing torch takes longer than this is not one to measure."""
_SHARE_S = 0.6
"""Seconds for each of the three measurements."""
_RATES = ("fp32_gflops", "bf16_gflops", "copy_gb_s")


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

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ceilings":
        """Read back what `to_json` wrote."""
        return cls(**{item.name: data[item.name] for item in fields(cls)})

    def best(self, other: "Ceilings") -> "Ceilings":
        """Return the higher rate of each; the rest is from the one with the faster fp32."""
        first, second = sorted((self, other), key=lambda one: one.fp32_gflops or 0, reverse=True)
        rates = {
            name: max(getattr(first, name) or 0, getattr(second, name) or 0) or None
            for name in _RATES
        }
        return Ceilings.from_json({**first.to_json(), **rates})


def measure(*, busy_cores: float, device: str = "cpu", threads: int | None = None) -> Ceilings:
    """Measure the ceilings of a device in a fresh process. Takes two to four seconds on a CPU.

    Args:
        busy_cores: cores that other processes keep busy right now, see `Host.busy_cores`.
        device: `cpu` or `cuda`.
        threads: threads to compute with, torch's own choice if None.

    Raises:
        RunError: the process failed, for instance because there is no torch.
    """
    start = time.perf_counter()
    environment = dict(os.environ)
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # -P keeps files of the current folder from being imported in place of torch or numpy.
    command = [sys.executable, "-P", "-W", "ignore", "-m", "hotlap.ceilings", device]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"measuring the ceilings of {device} took over {_LIMIT_S:g} s.") from None
    seconds = time.perf_counter() - start
    return parse(done.stdout, done.stderr, busy_cores=busy_cores, seconds=seconds)


def parse(output: str, errors: str, *, busy_cores: float, seconds: float) -> Ceilings:
    """Read what the measuring process printed.

    Raises:
        RunError: it printed no result; the message ends with its last line of errors.
    """
    try:
        data = json.loads(output.strip().splitlines()[-1])
        return Ceilings.from_json({**data, "busy_cores": busy_cores, "seconds": seconds})
    except (IndexError, ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"the ceilings could not be measured: {last}") from None


def _main(device: str) -> None:
    import torch

    size, copied = (1024, 1 << 27) if device == "cpu" else (8192, 1 << 30)
    torch.backends.cuda.matmul.allow_tf32 = False
    result: dict[str, Any] = {"device": device, "threads": torch.get_num_threads()}
    with torch.inference_mode():
        for name, dtype in (("fp32_gflops", torch.float32), ("bf16_gflops", torch.bfloat16)):
            result[name] = _product_gflops(torch, size, dtype, device)
        result["copy_gb_s"] = _copy_gb_s(torch, copied, device)
    print(json.dumps(result))  # noqa: T201


def _product_gflops(torch: Any, size: int, dtype: Any, device: str) -> float | None:
    try:
        left = torch.ones(size, size, dtype=dtype, device=device)
        out = torch.empty_like(left)
        seconds = _fastest(torch, lambda: torch.mm(left, left, out=out), device)
    except RuntimeError:
        return None
    return 2 * size**3 / seconds / 1e9


def _copy_gb_s(torch: Any, size: int, device: str) -> float | None:
    try:
        source = torch.ones(size // 4, dtype=torch.float32, device=device)
        out = torch.empty_like(source)
        seconds = _fastest(torch, lambda: out.copy_(source), device)
    except RuntimeError:
        return None
    return 2 * size / seconds / 1e9


def _fastest(torch: Any, work: Callable[[], Any], device: str) -> float:
    """Return the seconds of the fastest of at least three calls, the first one left out."""
    fastest, count = float("inf"), 0
    synchronize = torch.cuda.synchronize if device == "cuda" else None
    end = time.perf_counter() + _SHARE_S
    while count < 4 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        if synchronize is not None:
            synchronize()
        fastest = min(fastest, time.perf_counter() - start) if count else fastest
        count += 1
    return fastest


if __name__ == "__main__":
    _main(sys.argv[1])
