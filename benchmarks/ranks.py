"""Two ranks on this machine: hotlap's own against plain torch DDP as one writes it by hand.

Fresh processes in rounds of one run of each way, in one order and then in the other: what is told
is the median of the ratios within rounds, with its interval. Under accumulation also one sum per
step against one after every backward.
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
AGAIN = f"{BASE} again"
"""The base once more: how far identical runs differ."""
CASES = {
    1: ("hotlap", "hotlap, overlapping", AGAIN),
    4: ("hotlap", "hotlap, overlapping", "ddp, every backward", AGAIN),
}
"""Micro-batches of a step -> ways, each compared with DDP that sums once a step."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--accumulate N ...`, `--pairs N`, and the sizes of `ranks_loop`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks")
    parser.add_argument("--accumulate", type=int, nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int, default=2 if quick else 12)
    sizes = {"width": (256, 1024), "batch": (64, 128), "steps": (10, 100), "epochs": (2, 4)}
    for name, (small, usual) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=small if quick else usual)
    args = parser.parse_args(argv)
    options = [f"--{name}={getattr(args, name)}" for name in sizes]
    result = Result()
    for accumulate in args.accumulate:
        found = _rounds(accumulate, options, args.pairs)
        base = found.pop(BASE)
        for way, mine in found.items():
            ratio, step = paired_ratio(base, mine), spread(mine)
            result.rows.append(
                {
                    "micro-batches": accumulate,
                    "way": way,
                    "ms/step": f"{step.median:.3f} ({step.low:.3f} to {step.high:.3f})",
                    f"x {BASE}": f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
                    "pairs": ratio.pairs,
                }
            )
            result.figures[f"{accumulate}: {way}: x_{BASE}"] = ratio.median
    return result


def _rounds(accumulate: int, options: list[str], rounds: int) -> dict[str, list[float]]:
    """Return ms per step of the base and of each way, round by round."""
    found: dict[str, list[float]] = {way: [] for way in (BASE, *CASES[accumulate])}
    for number in range(rounds):
        for way in list(found) if number % 2 == 0 else list(reversed(found)):
            found[way].append(_measure(way.removesuffix(" again"), accumulate, options))
        newest = ", ".join(f"{way} {times[-1]:.2f}" for way, times in found.items())
        print(f"accumulate {accumulate}, ms per step: {newest}", file=sys.stderr, flush=True)
    return found


def _measure(way: str, accumulate: int, options: list[str]) -> float:
    command = [sys.executable, "-c", _RUNNER, f"--way={way}", f"--accumulate={accumulate}"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} ended with exit code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["ms"]
