"""`hotlap run` without a plan on loaders of many kinds, from start to end; plain and by hand.

Each round starts the plain script, the same under `hotlap run`, and the script that decodes once,
one after the other. A run under hotlap must print what the plain one prints, and be no slower.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.lab.statistics import Ratio, paired_ratio

SCRIPT = Path(__file__).with_name("loaders_script.py")
KINDS = (
    "workers",
    "persistent workers",
    "augmented",
    "augmented, workers",
    "augmented, persistent workers",
    "generator",
    "sampler",
    "WeightedRandomSampler",
    "batch sampler, own collate",
)
_WORTH = 1.1
"""What the change by hand must give for `hotlap run` to have to be faster, too."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--kind KIND` (repeatable), `--rounds N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks loaders")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=1 if quick else 5)
    args = parser.parse_args(argv)
    result = Result()
    slower, missed, changed = [], [], []
    for kind in args.kind or KINDS:
        seconds, outputs = _rounds(kind, args.rounds)
        ours = paired_ratio(seconds["plain"], seconds["hotlap run"])
        theirs = paired_ratio(seconds["plain"], seconds["by hand"])
        is_same = outputs["plain"] == outputs["hotlap run"]
        result.rows.append(
            {
                "loader": kind,
                "plain s": f"{min(seconds['plain']):.1f} to {max(seconds['plain']):.1f}",
                "hotlap run x plain": _figures(ours),
                "by hand x plain": _figures(theirs),
                "printed": "the same" if is_same else "OTHER LINES",
            }
        )
        print(*result.rows[-1].values(), sep="  ", file=sys.stderr, flush=True)
        changed += [kind] * (not is_same)
        slower += [kind] * (ours.high < 1)
        missed += [kind] * (theirs.median >= _WORTH and ours.low <= 1)
    result.figures = {
        "loaders": len(result.rows),
        "slower than plain": len(slower),
        f"by hand at least {_WORTH}, by `hotlap run` not faster": len(missed),
        "other lines printed": len(changed),
    }
    result.notes += [f"{name}: {value:.0f}" for name, value in result.figures.items()]
    result.notes.append(f"medians and intervals over {args.rounds} rounds of whole processes")
    return result


def _rounds(kind: str, rounds: int) -> tuple[Mapping[str, list[float]], Mapping[str, str]]:
    """Return the seconds of each way, by round, and what it printed last."""
    plain = [sys.executable, str(SCRIPT), kind]
    ways: dict[str, Sequence[str]] = {
        "plain": plain,
        "hotlap run": [sys.executable, "-m", "hotlap", "run", str(SCRIPT), kind],
        "by hand": [*plain, "--by-hand"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outputs = {}
    for number in range(rounds):
        # Whoever comes second finds warmer caches.
        order = list(ways) if number % 2 == 0 else list(reversed(ways))
        for name in order:
            started = time.perf_counter()
            done = subprocess.run(ways[name], capture_output=True, text=True, check=True)
            seconds[name].append(time.perf_counter() - started)
            outputs[name] = done.stdout
    return seconds, outputs


def _figures(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
