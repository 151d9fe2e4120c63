"""Test accuracy of the plain script and of the engine's tiers, over seeds: a smoke test.

It sees gross mistakes only: a plain run differs from itself by as much between seeds. The proof
that learning is unchanged is the verdict of `hotlap tune`.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

from benchmarks.__main__ import Result
from hotlap.host.facts import Host

ROOT = Path(__file__).parents[1]
TIERS = {"exact": "exact", "rounding": "rounding", "reduced precision": "bf16"}
MARGIN = 0.5
"""Points by which means may differ."""
_ACCURACY = re.compile(r"test accuracy ([\d.]+) %")


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--model mlp|cnn`, `--seeds N`, `--first-seed N`, `--epochs N`,
    `--tier exact|rounding|bf16`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks accuracy")
    parser.add_argument("--model", choices=["mlp", "cnn"], action="append")
    parser.add_argument("--seeds", type=int, default=2 if quick else 3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1 if quick else 10)
    parser.add_argument("--tier", choices=list(TIERS.values()), action="append", help="only these")
    args = parser.parse_args(argv)
    result = Result()
    for name in args.model or ["mlp"]:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        _one_model(name, seeds, args.epochs, args.tier or list(TIERS.values()), result)
    return result


def _one_model(model: str, seeds: range, epochs: int, tiers: list[str], result: Result) -> None:
    ways = {"plain": ["examples/fashion_mnist/plain.py"]}
    for name, tier in TIERS.items():
        if tier not in tiers:
            continue
        ways[f"engine, {name}"] = ["benchmarks/by_engine.py", "--tier", tier]
    scores: dict[str, list[float]] = {name: [] for name in ways}
    for seed in seeds:
        for name, command in ways.items():
            arguments = ["--model", model, "--epochs", str(epochs), "--seed", str(seed)]
            scores[name].append(_accuracy([*command, *arguments]))
            print(f"{model}, seed {seed}: {name}: {scores[name][-1]:.2f} %", file=sys.stderr)
    base = mean(scores["plain"])
    for name, values in scores.items():
        apart = mean(values) - base
        result.rows.append(
            {
                "model": model,
                "way": name,
                "accuracy of each seed": ", ".join(f"{value:.2f}" for value in values),
                "mean": f"{mean(values):.2f}",
                "between seeds": f"{stdev(values):.2f}" if len(values) > 1 else "",
                "points from plain": "" if name == "plain" else f"{apart:+.2f}",
                f"within {MARGIN}": "" if name == "plain" else str(abs(apart) <= MARGIN).lower(),
            }
        )
        result.figures[f"{model}: {name}: accuracy"] = mean(values)
        if name != "plain":
            result.figures[f"{model}: {name}: points_from_plain"] = apart
    result.notes.append(
        f"{model}: seeds {seeds[0]} to {seeds[-1]}, {epochs} epochs each; order of samples differs"
    )


def _accuracy(command: list[str]) -> float:
    """Return the accuracy, in per cent, after the last epoch."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    found = _ACCURACY.findall(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return float(found[-1])
