"""The recipe of `examples/gpt` under hotlap's engine; ways and options as in `gpt_by_hand.py`.

python benchmarks/gpt_by_engine.py --way masters --attention products --size 1m
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gpt"))

import recipe

from hotlap.engine.build import build
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan


def plan_of(way: str, attention: str, compile: bool, keep_memory: bool = False) -> Plan:
    """Return the plan that corresponds to the hand-written loop of these options."""
    plan = Plan({"optimizer": {"implementation": "fused"}})
    if way != "float32":
        plan = plan.with_technique("master_weights" if way == "masters" else "autocast")
    if attention != "torch":
        plan = plan.with_technique("attention", kernel=attention)
    if keep_memory:
        plan = plan.with_technique("host_allocator")
    return plan.with_technique("compile") if compile else plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=["float32", "masters", "autocast"], default="float32")
    parser.add_argument("--attention", choices=["torch", "products"], default="torch")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--keep-memory", action="store_true")
    parser.add_argument("--size", default="1m")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    task = recipe.task(size=args.size, steps=args.steps, batch_size=args.batch_size)
    plan = plan_of(args.way, args.attention, args.compile, args.keep_memory)
    built = build(task, plan)
    samples, start = 0, time.perf_counter()
    for step in steps_of(built):
        samples += step.samples
        # To read a loss is to wait for its step: as seldom as the loop by hand does it.
        if step.number % 10 == 0:
            loss = float(step.loss)
            rate = samples * task.data.block / (time.perf_counter() - start)
            print(f"step {step.number}: loss {loss:.4f}, {rate:,.0f} tokens/s", flush=True)
    for row in built.applied.proofs():
        print(f"{row['name']}: {row['state']}: {row['why']}")


if __name__ == "__main__":
    main()
