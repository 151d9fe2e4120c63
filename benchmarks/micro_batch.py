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
MODELS = ("mlp", "gpt", "cnn")
SHARES = (0.3, 0.6)
"""Limits: of what the whole batch holds beyond what is held before the first step."""
_MIB = 2**20


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--batch N`, `--seconds N` for the turns of each."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks micro_batch")
    parser.add_argument("--batch", type=int, default=64 if quick else 512)
    parser.add_argument("--seconds", type=float, default=5.0 if quick else 60.0)
    args = parser.parse_args(argv)
    result = Result()
    for model in MODELS[:1] if quick else MODELS:
        given = {"model": model, "batch_size": args.batch}
        line = tuple(f"--{name.replace('_', '-')}={value}" for name, value in given.items())
        recipe = RecipeRun(path=str(RECIPE), args=line, device="cpu")
        whole = _whole(recipe)
        for share in SHARES:
            limit = int(whole[0] + share * (whole[1] - whole[0]))
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
                grid = trials.pace(found.largest, 2 * args.seconds).rates
            fits = {each.size: each.fits for each in found.trials}
            off = 1 - grid.get(found.fastest, 0.0) / max(grid.values())
            result.rows.append(
                {
                    "model": model,
                    "limit MiB": f"{limit / _MIB:.0f}",
                    "batch": found.batch,
                    "largest": found.largest,
                    "peak MiB": f"{found.peak_bytes / _MIB:.0f}",
                    "one more": "fits" if fits.get(found.largest + 1, True) else "does not fit",
                    "trials": len(found.trials),
                    "fastest": found.fastest,
                    "x largest": "" if found.speedup is None else f"{found.speedup:.2f}",
                    "below best of grid": f"{off:.1%}",
                }
            )
            name = f"{model}, {share:.0%}"
            result.figures[f"{name}: largest"] = found.largest
            result.figures[f"{name}: fastest"] = found.fastest
            result.figures[f"{name}: below_best"] = off
    return result


def _whole(recipe: RecipeRun) -> tuple[int, int]:
    """Return the bytes held before the first step, and at most, without a limit."""
    with Lab(recipe) as lab:
        found = MicroBatchTrials(lab, Plan(), None, lambda _: None).fit_whole()
    if found is None or not found.fits:
        raise SystemExit(f"the whole batch of {recipe} does not fit here: pass a smaller --batch")
    return found.base_bytes, found.peak_bytes
