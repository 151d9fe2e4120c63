"""What recording system metrics costs a training: CPU time of the sampler's thread, and a duel.

One live process trains a small model on the CPU, or on the first GPU, with the sampler and without
it in turns, in the order A B B A. A step of about a millisecond is where a thread that takes the
interpreter's lock would show most. The process has two children, which are sampled too.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.host.monitor import Monitor, open_gpus
from hotlap.lab.statistics import paired_ratio
from hotlap.track.metrics_file import MetricsFile
from hotlap.track.sampler import Sampler
from hotlap.track.writer import Writer

ALLOWED_MS = 2.0
"""Of CPU time a second, that the sampler's thread may take."""
_BUSY = 0.3
_CHILD = "import time; time.sleep(1e6)"


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--seconds S` of the duel, `--every S`, `--width N`, `--children N`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks monitor")
    parser.add_argument("--seconds", type=float, default=12.0 if quick else 60.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--children", type=int, default=2)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    children = [subprocess.Popen([sys.executable, "-c", _CHILD]) for _ in range(args.children)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            duel = Duel(Path(folder), args.every, args.width)
            # Two samples in each turn, and four turns in each group.
            groups = max(1, round(args.seconds / (4 * duel.turn_s)))
            duel.train(duel.turn_s)
            for _ in range(groups):
                duel.group()
            duel.close()
    finally:
        for child in children:
            child.kill()
            child.wait()
    return _result(duel, groups, host)


def _result(duel: "Duel", groups: int, host: Host) -> Result:
    ratio = paired_ratio(duel.with_ms, duel.without_ms)
    cpu_ms = 1000 * duel.cpu_s / duel.sampled_s
    result = Result()
    result.figures = {
        "cpu ms a second": cpu_ms,
        "samples": float(duel.samples),
        "slower with it": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
    }
    result.rows.append(
        {
            "device": duel.device,
            "every s": duel.every_s,
            "turns": 4 * groups,
            "s a turn": f"{duel.turn_s:.1f}",
            "samples": duel.samples,
            "CPU ms a sample": f"{1000 * duel.cpu_s / max(1, duel.samples):.2f}",
            "CPU ms a second": f"{cpu_ms:.2f}",
            "ms a step with": f"{fmean(duel.with_ms):.4f}",
            "without": f"{fmean(duel.without_ms):.4f}",
            "with / without": f"{ratio.median:.4f}",
            "from": f"{ratio.low:.4f}",
            "to": f"{ratio.high:.4f}",
        }
    )
    result.failed = cpu_ms > ALLOWED_MS or not ratio.low <= 1 <= ratio.high
    result.notes.append(
        f"at most {ALLOWED_MS:g} ms of CPU time a second: {'yes' if cpu_ms <= ALLOWED_MS else 'no'}"
        f"; the interval contains 1: {'yes' if ratio.low <= 1 <= ratio.high else 'no'}"
    )
    if (host.busy_cores or 0) > _BUSY:
        result.notes.append("other processes kept the machine busy: this is no measurement to keep")
    return result


class Duel:
    """A training in this process, with the sampler and without it.

    Args:
        folder: for the records.
        every_s: seconds between two samples.
        width: of the model.
    """

    def __init__(self, folder: Path, every_s: float, width: int) -> None:
        self.every_s, self.turn_s = every_s, 2 * every_s + 0.1
        self.with_ms: list[float] = []
        self.without_ms: list[float] = []
        self.cpu_s = self.sampled_s = 0.0
        self.samples = 0
        # One for all turns, as a run has one: what it looks for every few seconds counts.
        self._monitor = Monitor(None, open_gpus()[0])
        self._writer = Writer(MetricsFile(folder))
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        self._inputs = torch.randn(256, width, device=self.device)
        self._labels = torch.randint(0, 10, (256,), device=self.device)
        self._model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(
            self.device
        )
        self._optimizer = torch.optim.Adam(self._model.parameters())

    def group(self) -> None:
        """Take four turns: with, without, without, with."""
        rows: dict[bool, list[float]] = {True: [], False: []}
        for is_sampled in (True, False, False, True):
            rows[is_sampled].append(self._sampled() if is_sampled else self.train(self.turn_s))
        self.with_ms += rows[True]
        self.without_ms += rows[False]

    def _sampled(self) -> float:
        sampler = Sampler(self._sample, self._writer, self.every_s)
        began = time.monotonic()
        found = self.train(self.turn_s)
        clock = time.pthread_getcpuclockid(sampler.ident)
        self.cpu_s += time.clock_gettime(clock)
        self.sampled_s += time.monotonic() - began
        sampler.close()
        return found

    def _sample(self) -> dict[str, float]:
        self.samples += 1
        return self._monitor.sample()

    def train(self, seconds: float) -> float:
        """Train for a while; return ms per step."""
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                loss = nn.functional.cross_entropy(self._model(self._inputs), self._labels)
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()
            steps += 10
            # As a script does that prints its loss.
            loss.item()
        return (time.perf_counter() - began) / steps * 1000

    def close(self) -> None:
        """Write what was recorded."""
        self._writer.close()
