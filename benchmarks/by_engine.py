"""The recipe of `examples/fashion_mnist` under hotlap's engine, tier by tier.

    python benchmarks/by_engine.py --tier exact|rounding|bf16 --model mlp|cnn --epochs N

The tiers are those of `by_hand.py`, and print what it prints.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fashion_mnist"))

import recipe

from hotlap.engine.build import build
from hotlap.engine.evaluate import evaluate
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan

_EXACT = Plan({"resident": {}, "optimizer": {"implementation": "foreach"}})
_ROUNDING = Plan({"resident": {}, "optimizer": {"implementation": "fused"}})
PLANS = {
    ("mlp", "exact"): _EXACT,
    ("cnn", "exact"): _EXACT,
    ("mlp", "rounding"): _ROUNDING,
    ("cnn", "rounding"): _ROUNDING.with_technique("channels_last"),
    ("mlp", "bf16"): _ROUNDING.with_technique("master_weights"),
    ("cnn", "bf16"): _ROUNDING.with_technique("channels_last").with_technique("autocast"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=["exact", "rounding", "bf16"], default="exact")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fill", action="store_true", help="decode everything before the start")
    args = parser.parse_args()
    task = recipe.task(model=args.model, epochs=args.epochs, seed=args.seed)
    built = build(task, PLANS[args.model, args.tier], fill_ahead=args.fill)
    start, total, count = time.perf_counter(), 0.0, 0
    for step in steps_of(built):
        total += float(step.loss)
        count += 1
        if step.ends_epoch:
            score = 100 * evaluate(built)["accuracy"]
            seconds = time.perf_counter() - start
            print(
                f"epoch {step.epoch}: loss {total / count:.6f}, test accuracy {score:.2f} %, "
                f"{seconds:.1f} s"
            )
            start, total, count = time.perf_counter(), 0.0, 0


if __name__ == "__main__":
    main()
