"""A GPT on text: plain, by hand, and with the engine, in turns.

Every way is a live process that trains as long as the others watch it. Which hand-written loop in
reduced precision is the best depends on the processor, so all of them take part.
"""

import argparse
from pathlib import Path

from benchmarks.__main__ import Result
from benchmarks.races import Races, raced
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
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
    """Measure; options: `--size` of the model, `--batch-size N`, `--starts N`, `--rounds N`,
    `--turn SECONDS`, `--no-compile`, `--way NAME`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpt")
    parser.add_argument("--size", choices=list(BATCH), action="append")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--starts", type=int, default=1, help="races, with fresh processes each")
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
        found = raced(
            size,
            _ways(size, batch, others | reduced),
            starts=args.starts,
            rounds=args.rounds,
            turn_s=args.turn,
        )
        _tell(batch, found, list(others), list(reduced), result)
    return result


def _ways(
    size: str, batch: int, taken: dict[str, tuple[str, ...]]
) -> dict[str, tuple[Script, Plan]]:
    usual = ("--size", size, "--batch-size", str(batch), "--steps", str(STEPS))
    never = ("--evaluate-every", str(STEPS))
    scripts = {"plain": Script(path=PLAIN, args=(*usual, *never), cwd=str(ROOT))}
    for name, options in taken.items():
        for whose, path in (("by hand", BY_HAND), ("engine", BY_ENGINE)):
            scripts[f"{whose}, {name}"] = Script(path=path, args=(*usual, *options), cwd=str(ROOT))
    scripts["plain again"] = scripts["plain"]
    return {name: (script, Plan()) for name, script in scripts.items()}


def _tell(batch: int, found: Races, others: list[str], reduced: list[str], result: Result) -> None:
    size = found.label
    found.tell(result, "size", "tokens", batch * BLOCK[size])
    for name in (*others, *reduced):
        found.tell_pair(result, f"engine, {name}", f"by hand, {name}")
    best = _fastest(found, "by hand", reduced)
    ours = _fastest(found, "engine", reduced)
    if best is not None and ours is not None:
        speed = found.x_plain(ours).median
        result.figures[f"{size}: reduced precision: x_plain"] = speed
        result.figures[f"{size}: reduced precision / by hand"] = found.tell_pair(result, ours, best)
        result.notes.append(
            f"{size}: in reduced precision the best by hand is `{best}`, the engine's `{ours}`: "
            f"{speed:.2f} times as fast as the plain script"
        )
    found.tell_floor(result, f"batch {batch}, {BLOCK[size]} tokens a sample; ")


def _fastest(found: Races, whose: str, ways: list[str]) -> str | None:
    names = [f"{whose}, {way}" for way in ways if f"{whose}, {way}" in found.ways]
    return min(names, key=lambda name: found.spread(name).median, default=None)
