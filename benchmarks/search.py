"""Successive halving against random search of the same configurations, both trained by hotlap.

The FashionMNIST recipe with a learning rate that is 30 times too large by default: is what is found
better than the default beyond the noise of seeds, how near is it to the best of all
configurations trained to the end, and for how many of their steps?
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.__main__ import Result
from hotlap.host.facts import Host

EXAMPLE = Path(__file__).parents[1] / "examples" / "fashion_mnist"
_RIGHT, _WRONG = "LogUniform(1e-4, 1e-1)] = 1e-3,", "LogUniform(1e-4, 1e-1)] = 3e-2,"


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Search; options: `--searches N`, `--trials N`, `--epochs N`, `--workers N`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks search")
    parser.add_argument("--searches", type=int, default=1 if quick else 3)
    parser.add_argument("--trials", type=int, default=6 if quick else 24)
    parser.add_argument("--epochs", type=int, default=1 if quick else 3)
    parser.add_argument("--workers", type=int, default=host.cores)
    args = parser.parse_args(argv)
    result = Result()
    with tempfile.TemporaryDirectory() as folder:
        recipe = _copy_example(Path(folder))
        for seed in range(args.searches):
            common = [str(recipe), "--seed", str(seed), "--trials", str(args.trials)]
            common += ["--epochs", str(args.epochs), "--workers", str(args.workers)]
            halved = _search([*common, "--method", "asha"], Path(folder) / f"asha-{seed}")
            # The same seed draws the same configurations.
            whole = _search(
                [*common, "--method", "random", "--seeds", "0"], Path(folder) / f"random-{seed}"
            )
            result.rows.append(_row(seed, halved, whole))
    for name in ("share of steps", "points behind", "stopped", "points gained"):
        result.figures[name] = median(float(row[name]) for row in result.rows)
    result.notes.append(
        "median of the searches: "
        + ", ".join(f"{name} {value:.3g}" for name, value in result.figures.items())
    )
    return result


def _copy_example(folder: Path) -> Path:
    copied = shutil.copytree(EXAMPLE, folder / "recipe")
    recipe = copied / "recipe.py"
    text = recipe.read_text()
    if text.count(_RIGHT) != 1:
        raise RuntimeError(f"{recipe} has no `{_RIGHT}`, of which the default is made too large")
    recipe.write_text(text.replace(_RIGHT, _WRONG))
    return recipe


def _search(argv: list[str], folder: Path) -> dict[str, Any]:
    print(f"{folder.name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "hotlap", "search", "--objective", "max:accuracy", "--json"]
    done = subprocess.run(
        [*command, "--run-dir", str(folder), *argv], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{folder.name} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def _row(seed: int, halved: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    compared = halved["comparison"] or {"verdict": "none", "gain": 0.0, "low": 0.0, "high": 0.0}
    return {
        "search": seed,
        "steps": halved["steps"],
        "random's": whole["steps"],
        "share of steps": f"{halved['steps'] / whole['steps']:.3f}",
        "best %": f"{100 * halved['best']['value']:.2f}",
        "random's %": f"{100 * whole['best']['value']:.2f}",
        "points behind": f"{100 * (whole['best']['value'] - halved['best']['value']):.2f}",
        "lr": halved["best"]["parameters"]["lr"],
        "stopped": f"{halved['stopped_early'] / len(halved['trials']):.2f}",
        "against the default": compared["verdict"],
        "points gained": f"{100 * compared['gain']:.2f}",
        "from": f"{100 * compared['low']:.2f}",
        "to": f"{100 * compared['high']:.2f}",
    }
