"""Two ranks on this machine: hotlap's own against plain torch DDP as one writes it by hand.

Fresh processes in pairs, A B, B A, and so on: what is told is the median of the ratios, with its
interval. Under accumulation also one sum per step against one after every backward.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.lab.statistics import paired_ratio, spread

ROOT = Path(__file__).parents[1]
BASE = "ddp"
_RUNNER = (
    "import sys; from hotlap.distributed.launch import launch; "
    "sys.exit(launch([sys.executable, '-m', 'benchmarks.ranks_loop', *sys.argv[1:]], 2))"
)
CASES = {
    1: ("hotlap", "hotlap, overlapping", BASE),
    4: ("hotlap", "hotlap, overlapping", "ddp, every backward", BASE),
}
"""Micro-batches of a step -> ways, each compared with DDP that sums once a step."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--pairs N`, `--width N`, `--batch N`, `--steps N`, `--epochs N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks")
    parser.add_argument("--pairs", type=int, default=2 if quick else 12)
    sizes = {"width": (256, 1024), "batch": (64, 128), "steps": (10, 100), "epochs": (2, 4)}
    for name, (small, usual) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=small if quick else usual)
    args = parser.parse_args(argv)
    options = [f"--{name}={getattr(args, name)}" for name in sizes]
    result = Result()
    for accumulate, ways in CASES.items():
        # DDP twice: how far identical pairs differ.
        for way in ways:
            print(f"accumulate {accumulate}, {way} ...", file=sys.stderr, flush=True)
            mine, base = _pairs(way, accumulate, options, args.pairs)
            ratio, step = paired_ratio(base, mine), spread(mine)
            name = f"{way}{' again' if way == BASE else ''}"
            result.rows.append(
                {
                    "micro-batches": accumulate,
                    "way": name,
                    "ms/step": f"{step.median:.3f} ({step.low:.3f} to {step.high:.3f})",
                    f"x {BASE}": f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
                    "pairs": ratio.pairs,
                }
            )
            result.figures[f"{accumulate}: {name}: x_{BASE}"] = ratio.median
    return result


def _pairs(
    way: str, accumulate: int, options: list[str], pairs: int
) -> tuple[list[float], list[float]]:
    """Return ms per step of a way and of the base, pair by pair."""
    mine: list[float] = []
    base: list[float] = []
    for number in range(pairs):
        order = [(way, mine), (BASE, base)]
        for each, kept in order if number % 2 == 0 else reversed(order):
            kept.append(_measure(each, accumulate, options))
    return mine, base


def _measure(way: str, accumulate: int, options: list[str]) -> float:
    command = [sys.executable, "-c", _RUNNER, f"--way={way}", f"--accumulate={accumulate}"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} ended with exit code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["ms"]
