"""Ways to train that take turns on one device, and what is measured of each."""

import gc
import gzip
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import hotlap
from benchmarks.gpu_rows import Rows
from hotlap.device.accelerator import Cuda, Device
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.clock import EpochClock
from hotlap.engine.retries import Retries
from hotlap.engine.state.position import Position
from hotlap.engine.train_loop import take_steps
from hotlap.lab.statistics import paired_ratio, spread
from hotlap.plan import Plan

FUSED = {"optimizer": {"implementation": "fused"}}
RESIDENT = {"resident": {}}
MIB = 2**20
PROFILED = 3
"""Steps at least that are profiled of each way."""
_WARM_UP = 12
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("Launch", "MemcpyAsync", "MemsetAsync")
"""Parts of the names of calls that queue work: cudaLaunchKernel, cudaGraphLaunch and others."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured, with what, and where the rows go."""

    device: Device
    rounds: int
    turn_s: float
    is_small: bool
    """To see that it works, anywhere."""
    rows: Rows = field(default_factory=lambda: Rows(None, ""))
    out: Path | None = None
    """Folder for traces; none is kept without it."""
    ends: float = float("inf")
    """When to begin nothing more, by `time.monotonic()`."""
    only: tuple[str, ...] = ()
    """Names of the ways that are measured; all, if there are none."""

    def left_s(self) -> float:
        return self.ends - time.monotonic()

    @property
    def is_cuda(self) -> bool:
        return self.device.kind == "cuda"


class Engine:
    """Steps of hotlap's engine, as `hotlap.train` takes and counts them; no loss is read."""

    def __init__(self, task: hotlap.Task, plan: Mapping[str, Any], sizes: Sizes) -> None:
        device = sizes.device.name
        self.built: BuiltRun = build(task, Plan(dict(plan)), device=device, fill_ahead=True)
        self._clock = EpochClock(self.built.hardware)
        self._left = 0
        """Steps that may still be taken in this call."""
        self._steps: Iterator[Any] = take_steps(
            self.built,
            Position(),
            Retries(self.built, print),
            lambda _: self._left,
            lambda: self._clock.totals,
        )
        self.unit = int(plan.get("cuda_graph", {}).get("steps", 1))
        """Steps that one launch takes."""
        if self.unit > 1:
            # The first epoch is taken step by step.
            self(task.steps_per_epoch or 0)

    def __call__(self, count: int) -> None:
        self._left = count
        while self._left:
            step = next(self._steps)
            self._left -= step.count
            self._clock.add(step)
            if step.ends_epoch:
                self._clock = EpochClock(self.built.hardware)

    def proofs(self) -> list[dict[str, Any]]:
        return self.built.applied.proofs()

    def end(self) -> None:
        self.built.end()


class Way:
    """One way to train: made, warmed up, and ready to take turns.

    Args:
        name: as rows name it.
        make: returns what takes a number of steps; an `Engine`, or a loop by hand.
        sizes: see there.
        around: a context manager's factory, inside which all of it happens.
    """

    def __init__(
        self, name: str, make: Callable[[], Callable[[int], None]], sizes: Sizes, around: Any = None
    ) -> None:
        self.name, self.sizes, self.around = name, sizes, around or nullcontext
        before = _held(sizes.device)
        self._before = memory(sizes)
        begin = time.perf_counter()
        with self.around():
            self._steps = make()
            self._unit = getattr(self._steps, "unit", 1)
            self._take(self._whole(_WARM_UP))
        self.set_up_s = time.perf_counter() - begin
        self.peak_bytes = sizes.device.peak_bytes() - before
        with self.around():
            few = self._whole(4)
            took = min(self._take(few)[0] for _ in range(3)) / few / 1e3
        self.steps = self._whole(max(4, int(sizes.turn_s / took)))
        # Before anything is profiled: from then on each node of a graph costs its launch some time.
        self._host_ms = self.host_ms()

    def _whole(self, count: int) -> int:
        """Return the next number of steps that can be taken: a launch may take several."""
        return -(-count // self._unit) * self._unit

    def _take(self, count: int) -> tuple[float, float | None]:
        """Take steps; return ms on the wall, and between events on the device."""
        device = self.sizes.device
        device.synchronize()
        begin, first = time.perf_counter(), timed_mark(device)
        self._steps(count)
        last = timed_mark(device)
        device.synchronize()
        wall = (time.perf_counter() - begin) * 1e3
        return wall, None if first is None else first.elapsed_time(last)

    def turn(self) -> float:
        """Return ms per step of one turn, and write it down."""
        with self.around():
            wall, events = self._take(self.steps)
        between = None if events is None else events / self.steps
        self.sizes.rows.add(way=self.name, turn_ms=wall / self.steps, events_ms=between)
        return wall / self.steps

    def host_ms(self) -> float:
        """Return ms per step until all of it is queued, with an idle device before; the median."""
        count, took = self._whole(8), []
        with self.around():
            for _ in range(5):
                self.sizes.device.synchronize()
                begin = time.perf_counter()
                self._steps(count)
                took.append(time.perf_counter() - begin)
            self.sizes.device.synchronize()
        return median(took) / count * 1e3

    def described(self, trace: str | None = None) -> dict[str, Any]:
        """Return what it costs beside its time; the profile of some steps goes to `trace`."""
        with self.around():
            seen = profiled(self._steps, self._whole(PROFILED), self.sizes, trace)
        return {
            "set_up_s": round(self.set_up_s, 2),
            "host_ms": self._host_ms,
            "peak_bytes": self.peak_bytes,
            **self.memory(),
            **seen,
            "techniques": self.states(),
        }

    def memory(self) -> dict[str, int]:
        """Return the bytes that were taken since it was made: other ways may hold theirs."""
        return {name: held - self._before[name] for name, held in memory(self.sizes).items()}

    def states(self) -> str:
        rows = self._steps.proofs() if isinstance(self._steps, Engine) else []
        return ", ".join(
            f"{row['name']} {row['state']}"
            + ("" if row["state"] == "applied" else f" ({row['why']})")
            for row in rows
        )

    def end(self) -> None:
        """Give back what it holds."""
        if isinstance(self._steps, Engine):
            self._steps.end()
        del self._steps
        forget()


def forget() -> None:
    """Let go of what is held by nobody."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def timed_mark(device: Device) -> Any:
    """Return an event that knows when the device has passed it, None on a CPU."""
    return device.timed_mark() if isinstance(device, Cuda) else None


def _held(device: Device) -> int:
    """Forget the peak so far, and return the bytes that are held now."""
    if device.kind != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device.name)
    return torch.cuda.memory_allocated(device.name)


def memory(sizes: Sizes) -> dict[str, int]:
    """Return bytes as torch's allocator and as the driver count them; {} on a CPU."""
    if not sizes.is_cuda:
        return {}
    free, total = torch.cuda.mem_get_info(sizes.device.name)
    return {
        "allocated_bytes": torch.cuda.memory_allocated(sizes.device.name),
        "reserved_bytes": torch.cuda.memory_reserved(sizes.device.name),
        "driver_used_bytes": total - free,
    }


def profiled(
    take: Callable[[int], None], count: int, sizes: Sizes, trace: str | None = None
) -> dict[str, Any]:
    """Return launches, kernels and their time of a step, and the longest of them by name."""
    activities = [ProfilerActivity.CPU]
    if sizes.is_cuda:
        activities.append(ProfilerActivity.CUDA)
    try:
        with profile(activities=activities) as seen:
            take(count)
            sizes.device.synchronize()
    except RuntimeError as error:
        return {"not_profiled": str(error).splitlines()[0]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        content = path.read_bytes()
    if trace is not None and sizes.out is not None:
        (sizes.out / f"{trace}.json.gz").write_bytes(gzip.compress(content))
    events = [event for event in json.loads(content)["traceEvents"] if event.get("ph") == "X"]
    queued = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    device = [e for e in events if e.get("cat") in _ON_DEVICE]
    longest: Counter[str] = Counter()
    for event in device or [e for e in events if e.get("cat") == "cpu_op"]:
        longest[event["name"][:90]] += event["dur"]
    launches = sum(any(part in event["name"] for part in _LAUNCHES) for event in queued)
    return {
        "launches": launches / count,
        "kernels": len(device) / count,
        "device_us": sum(event["dur"] for event in device) / count,
        "longest_us": {name: us / count for name, us in longest.most_common(8)},
    }


def in_turns(ways: Mapping[str, Any], sizes: Sizes, per_step: int, trace_of: str = "") -> None:
    """Let ways take turns, each in both orders; the first is what the others are compared with.

    Args:
        ways: name -> what makes it, or (that, what is around it).
        sizes: see there.
        per_step: samples or tokens of a step.
        trace_of: the way whose profile is kept.
    """
    ready: dict[str, Way] = {}
    for name, made in ways.items():
        if sizes.only and name not in sizes.only:
            continue
        make, around = made if isinstance(made, tuple) else (made, None)
        way = attempted(name, lambda m=make, a=around, n=name: Way(n, m, sizes, a), sizes)
        if way is not None:
            ready[name] = way
    seen: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(sizes.rounds):
        if number >= 2 and sizes.left_s() < 0:
            break
        for name in ready if number % 2 == 0 else reversed(ready):
            seen[name].append(ready[name].turn())
    # Once a process was profiled, its graphs take longer to launch.
    for name, way in ready.items():
        trace = f"trace-{sizes.rows.part}" if name == trace_of else None
        sizes.rows.add(way=name, **way.described(trace))
    first = next(iter(seen.values()), [])
    for name, values in seen.items():
        tell(sizes, name, values, per_step, first)


def tell(
    sizes: Sizes, name: str, values: list[float], per_step: int, base: list[float] | None = None
) -> None:
    """Write down the median of a way's turns, and how much faster than the first one it is."""
    row = spread(values)
    ratio = {} if base is None else _ratio(base, values)
    sizes.rows.add(
        way=name,
        ms=row.median,
        ms_interval=[row.low, row.high],
        per_s=per_step * 1e3 / row.median,
        turns=row.n,
        **ratio,
    )


def _ratio(base: list[float], values: list[float]) -> dict[str, Any]:
    ratio = paired_ratio(base, values)
    return {"faster_by": ratio.median, "faster_by_interval": [ratio.low, ratio.high]}


def attempted(name: str, work: Callable[[], Any], sizes: Sizes) -> Any:
    """Return what `work` gives; None, with a row that says why, if it failed on this device."""
    try:
        return work()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        told = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    # Outside of the handler, which holds on to everything that the frames hold.
    sizes.rows.add(way=name, failed=told)
    forget()
    return None


def compared(
    make: Callable[[Sizes], hotlap.Task],
    ways: Mapping[str, Mapping[str, Any]],
    sizes: Sizes,
    around: Mapping[str, Any] | None = None,
) -> None:
    """Let plans take turns on one task."""
    task = make(sizes)
    makers = {
        name: (lambda plan=plan: Engine(task, plan, sizes), (around or {}).get(name))
        for name, plan in ways.items()
    }
    in_turns(makers, sizes, task.logical_batch)


class Tf32:
    """Matrix products in TF32 inside the block."""

    def __enter__(self) -> None:
        self._before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self._before)
