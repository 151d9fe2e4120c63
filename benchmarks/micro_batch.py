"""The largest micro-batch that fits and the fastest one, as hotlap finds them, against a grid.

For each of three recipes under two limits of memory: the largest that fits, that one more sample
does not, and how far the fastest is from the best of a grid that is timed afterwards, in turns.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.tuning.micro_batches.call import find_micro_batch
from hotlap.tuning.micro_batches.trials import MicroBatchTrials

RECIPE = Path(__file__).with_name("micro_batch_recipe.py")
BATCHES = {"mlp": 4096, "gpt": 128, "cnn": 256}
SHARES = (0.3, 0.6)
"""Limits: of what the whole batch holds beyond what a micro-batch of few samples holds."""
_FEW = 8
"""Samples. One at a time, the whole batch of the widest model would take minutes."""
_MIB = 2**20


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; option: `--seconds N` for the turns of each."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks micro_batch")
    parser.add_argument("--seconds", type=float, default=5.0 if quick else 60.0)
    args = parser.parse_args(argv)
    result = Result()
    for model in ["gpt"] if quick else BATCHES:
        given = {"model": model, "batch_size": 64 if quick else BATCHES[model]}
        line = tuple(f"--{name.replace('_', '-')}={value}" for name, value in given.items())
        recipe = RecipeRun(path=str(RECIPE), args=line, device="cpu")
        least, most = _peaks(recipe)
        for share in SHARES:
            limit = int(least + share * (most - least))
            print(f"{model}, {limit / _MIB:.0f} MiB ...", file=sys.stderr, flush=True)
            found = find_micro_batch(
                RECIPE,
                Plan(),
                arguments=given,
                memory=limit,
                seconds=args.seconds,
                again=True,
                device="cpu",
            )
            with Lab(recipe) as lab:
                trials = MicroBatchTrials(lab, Plan(), limit, lambda _: None)
                grid = trials.pace(found.largest, 2 * args.seconds)
                best = grid.fastest or found.fastest
                # The best of many that are timed once looks better than it is.
                again = trials.pace(found.largest, 2 * args.seconds, {best, found.fastest})
            fits = {each.size: each.fits for each in found.trials}
            off = 1 - 1 / again.times_faster(best, found.fastest)
            row = {
                "model": model,
                "limit MiB": f"{limit / _MIB:.0f}",
                "batch": found.batch,
                "largest": found.largest,
                "peak MiB": f"{found.peak_bytes / _MIB:.0f}",
                "one more": "fits" if fits.get(found.largest + 1, True) else "does not fit",
                "trials": len(found.trials),
                "fastest": found.fastest,
                "x largest": "" if found.speedup is None else f"{found.speedup:.2f}",
                "best of grid": best,
                "below it, timed again": f"{off:.1%}",
            }
            print(row, file=sys.stderr, flush=True)
            result.rows.append(row)
            name = f"{model}, {share:.0%}"
            result.figures[f"{name}: largest"] = found.largest
            result.figures[f"{name}: fastest"] = found.fastest
            result.figures[f"{name}: below_best"] = off
    return result


def _peaks(recipe: RecipeRun) -> tuple[int, int]:
    """Return the bytes that a micro-batch of few samples holds at most, and the whole batch."""
    with Lab(recipe) as lab:
        trials = MicroBatchTrials(lab, Plan(), None, lambda _: None)
        whole, few = trials.fit_whole(), trials.fit(_FEW)
    if whole is None or not whole.fits:
        raise SystemExit(f"the whole batch of {recipe} does not fit here: use more memory")
    return few.peak_bytes, whole.peak_bytes
