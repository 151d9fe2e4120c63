"""A GPT on text: plain, by hand, and with the engine, in turns.

Every way is a live process that trains as long as the others watch it. Which hand-written loop in
reduced precision is the best depends on the processor, so all of them take part.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.__main__ import Result
from hotlap.attach.entry import Script
from hotlap.host import Host
from hotlap.lab.pairs import Arm, Race, race
from hotlap.lab.statistics import paired_ratio
from hotlap.lab.trial import Lab
from hotlap.plan import Plan

ROOT = Path(__file__).parents[1]
PLAIN = "examples/gpt/plain.py"
BY_HAND = "benchmarks/gpt_by_hand.py"
BY_ENGINE = "benchmarks/gpt_by_engine.py"
BATCH = {"1m": 8, "10m": 2, "30m": 2, "124m": 1}
BLOCK = {"1m": 128, "10m": 256, "30m": 256, "124m": 1024}
STEPS = 1_000_000
"""More than any race takes."""
FLOAT32 = {"float32": ("--way", "float32")}
REDUCED = {
    "autocast": ("--way", "autocast"),
    "autocast, products": ("--way", "autocast", "--attention", "products"),
    "masters": ("--way", "masters"),
    "masters, products": ("--way", "masters", "--attention", "products"),
    "masters, products, memory kept": (
        *("--way", "masters", "--attention", "products"),
        "--keep-memory",
    ),
}
COMPILED = {
    "masters, products, compiled": ("--way", "masters", "--attention", "products", "--compile"),
    "masters, products, memory kept, compiled": (
        *("--way", "masters", "--attention", "products"),
        *("--keep-memory", "--compile"),
    ),
}


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--size` of the model, `--batch-size N`, `--rounds N`, `--turn S`,
    `--no-compile`, `--way NAME`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpt")
    parser.add_argument("--size", choices=list(BATCH), action="append")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rounds", type=int, default=3 if quick else 8)
    parser.add_argument("--no-compile", action="store_true", help="leave compiled loops out")
    parser.add_argument("--turn", type=float, default=0.3 if quick else 1.5, help="seconds")
    parser.add_argument(
        "--way",
        choices=list(REDUCED | COMPILED),
        action="append",
        help="only these, beside the plain script: fewer processes, steadier figures",
    )
    args = parser.parse_args(argv)
    result = Result()
    reduced = REDUCED if quick or args.no_compile else REDUCED | COMPILED
    others = FLOAT32
    if args.way:
        others, reduced = {}, {name: (REDUCED | COMPILED)[name] for name in args.way}
    for size in args.size or (["1m"] if quick else ["1m", "10m"]):
        batch = args.batch_size or (2 if quick else BATCH[size])
        found = _race(size, batch, others | reduced, args.rounds, args.turn)
        _tell(size, batch, found, list(others), list(reduced), result)
    return result


def _race(
    size: str, batch: int, taken: dict[str, tuple[str, ...]], rounds: int, turn_s: float
) -> Race:
    usual = ("--size", size, "--batch-size", str(batch), "--steps", str(STEPS))
    never = ("--evaluate-every", str(STEPS))
    ways = {"plain": Script(path=PLAIN, args=(*usual, *never), cwd=str(ROOT))}
    for name, options in taken.items():
        for whose, path in (("by hand", BY_HAND), ("engine", BY_ENGINE)):
            ways[f"{whose}, {name}"] = Script(path=path, args=(*usual, *options), cwd=str(ROOT))
    ways["plain again"] = ways["plain"]
    with ExitStack() as stack:
        arms = [
            Arm(name, Plan(), stack.enter_context(Lab(script))) for name, script in ways.items()
        ]
        found = race(
            arms,
            twins=("plain", "plain again"),
            rounds=rounds,
            turn_s=turn_s,
            progress=lambda text: print(f"{size}: {text}", file=sys.stderr),
        )
    for arm in arms:
        if arm.failed is not None:
            print(f"{size}: {arm.name} was left out: {arm.failed}", file=sys.stderr)
    return found


def _tell(
    size: str, batch: int, found: Race, others: list[str], reduced: list[str], result: Result
) -> None:
    for name, arm in found.arms.items():
        step, ratio = found.spread(name), found.ratio(name)
        tokens = batch * BLOCK[size] * 1000 / step.median
        result.rows.append(
            {
                "size": size,
                "way": name,
                "ms/step": f"{step.median:.2f} ({step.low:.2f} to {step.high:.2f})",
                "tokens/s": f"{tokens:,.0f}",
                "x plain": f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                "turns": len(arm.turns_ms),
            }
        )
        result.figures[f"{size}: {name}: tokens_per_s"] = tokens
        result.figures[f"{size}: {name}: x_plain"] = ratio.median
    for name in (*others, *reduced):
        _compare(size, found, f"engine, {name}", f"by hand, {name}", result)
    best = _fastest(found, "by hand", reduced)
    ours = _fastest(found, "engine", reduced)
    if best is not None and ours is not None:
        ratio = _compare(size, found, ours, best, result)
        result.figures[f"{size}: reduced precision: x_plain"] = found.ratio(ours).median
        result.figures[f"{size}: reduced precision / by hand"] = ratio
        result.notes.append(
            f"{size}: in reduced precision the best by hand is `{best}`, the engine's `{ours}`: "
            f"{found.ratio(ours).median:.2f} times as fast as the plain script"
        )
    result.notes.append(
        f"{size}: batch {batch}, {BLOCK[size]} tokens a sample; identical plain runs may be "
        f"{found.floor:.1%} apart; {found.steps_per_turn} steps a turn"
    )


def _fastest(found: Race, whose: str, ways: list[str]) -> str | None:
    names = [f"{whose}, {way}" for way in ways if f"{whose}, {way}" in found.arms]
    return min(names, key=lambda name: found.spread(name).median, default=None)


def _compare(size: str, found: Race, ours: str, theirs: str, result: Result) -> float:
    if ours not in found.arms or theirs not in found.arms:
        result.notes.append(f"{size}: `{ours}` / `{theirs}`: one of them was left out of the race")
        return float("nan")
    ratio = paired_ratio(found.arms[ours].turns_ms, found.arms[theirs].turns_ms)
    figure = f"{size}: {ours} / {theirs}"
    if figure not in result.figures:
        result.notes.append(
            f"{size}: a step of `{ours}` takes {ratio.median:.3f} ({ratio.low:.3f} to "
            f"{ratio.high:.3f}) times that of `{theirs}`"
        )
    result.figures[figure] = ratio.median
    return ratio.median
