"""The lecture's script: plain, by hand, and under hotlap.

Steady speed: every way is a live process, and they train in turns. Whole run: fresh processes, from
start to end, in turns as well.
"""

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import peers
from benchmarks.__main__ import Result
from benchmarks.races import raced
from hotlap.attach.entry import Script
from hotlap.attach.runner import run as run_script
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.techniques import EXACT_PLAN

ROOT = Path(__file__).parents[1]
PLAIN = "examples/fashion_mnist/plain.py"
BY_HAND = "benchmarks/by_hand.py"
BY_ENGINE = "benchmarks/by_engine.py"
BY_PEER = {"Lightning": "benchmarks/by_lightning.py", "Accelerate": "benchmarks/by_accelerate.py"}
SETTINGS = ("default", "tuned", "bf16")
BATCH = 64
EPOCHS = 10
TUNED = {
    "mlp": Plan({"resident": {}, "optimizer": {"implementation": "fused"}}),
    "cnn": Plan({"resident": {}, "optimizer": {"implementation": "fused"}, "channels_last": {}}),
}
"""What `hotlap tune` finds for the tier `rounding`."""
PAIRS = (
    ("run, exact", "by hand, exact"),
    ("run, tuned", "by hand, rounding"),
    ("engine, exact", "by hand, exact"),
    ("engine, rounding", "by hand, rounding"),
    ("engine, bf16", "by hand, bf16"),
    ("engine, exact", "run, exact"),
    ("engine, rounding", "run, tuned"),
    ("engine, rounding", "Lightning, tuned"),
    ("engine, rounding", "Accelerate, tuned"),
    ("engine, bf16", "Lightning, bf16"),
    ("engine, bf16", "Accelerate, bf16"),
)


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--model mlp|cnn`, `--starts N`, `--rounds N`, `--whole N` runs,
    `--plan FILE`, `--tier`, `--turn SECONDS`, `--no-peers`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks lecture")
    parser.add_argument("--model", choices=["mlp", "cnn"], action="append")
    parser.add_argument("--starts", type=int, default=1, help="races, with fresh processes each")
    parser.add_argument("--rounds", type=int, default=3 if quick else 8)
    parser.add_argument("--whole", type=int, default=0 if quick else 1)
    parser.add_argument("--plan", type=Path, help="a tuned plan file, in place of the usual one")
    parser.add_argument("--tier", choices=["exact", "rounding", "bf16"], help="only this one")
    parser.add_argument("--turn", type=float, default=0.3 if quick else 1.0, help="seconds")
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    args = parser.parse_args(argv)
    result = Result(notes=[] if args.no_peers else peers.told(tuple(BY_PEER)))
    there = {} if args.no_peers else peers.versions(tuple(BY_PEER))
    for model in args.model or ["mlp", "cnn"]:
        tuned = TUNED[model] if args.plan is None else PlanFile.read(args.plan).plan
        _steady(model, tuned, tuple(there), args, result)
        if args.whole:
            _whole(model, tuned, tuple(there), args.whole, result)
    return result


def _script(path: str, model: str, *more: str) -> Script:
    arguments = ("--model", model, "--epochs", str(EPOCHS * 20), *more)
    return Script(path=path, args=arguments, cwd=str(ROOT))


def _by_peers(names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return way -> (file, settings)."""
    return {f"{name}, {kind}": (BY_PEER[name], kind) for name in names for kind in SETTINGS}


def _steady(
    model: str,
    tuned: Plan,
    others: tuple[str, ...],
    args: argparse.Namespace,
    result: Result,
) -> None:
    ways = {
        "plain": (_script(PLAIN, model), Plan()),
        "by hand, exact": (_script(BY_HAND, model, "--tier", "exact"), Plan()),
        "run, exact": (_script(PLAIN, model), EXACT_PLAN),
        "plain again": (_script(PLAIN, model), Plan()),
        "by hand, rounding": (_script(BY_HAND, model, "--tier", "rounding"), Plan()),
        "run, tuned": (_script(PLAIN, model), tuned),
        "by hand, bf16": (_script(BY_HAND, model, "--tier", "bf16"), Plan()),
        "engine, exact": (_script(BY_ENGINE, model, "--tier", "exact", "--fill"), Plan()),
        "engine, rounding": (_script(BY_ENGINE, model, "--tier", "rounding", "--fill"), Plan()),
        "engine, bf16": (_script(BY_ENGINE, model, "--tier", "bf16", "--fill"), Plan()),
        **{
            name: (_script(path, model, "--settings", kind), Plan())
            for name, (path, kind) in _by_peers(others).items()
        },
    }
    # Processes that wait still push others out of caches: a race of one tier has fewer.
    ways = {
        name: way
        for name, way in ways.items()
        if args.tier is None or _tier(name) in (None, args.tier)
    }
    found = raced(model, ways, starts=args.starts, rounds=args.rounds, turn_s=args.turn)
    found.tell(result, "model", "samples", BATCH)
    for ours, theirs in PAIRS:
        if ours in ways and theirs in ways:
            found.tell_pair(result, ours, theirs)
    found.tell_floor(result)


def _tier(way: str) -> str | None:
    """Return the tier of a way, None for the plain loop, which is in every race."""
    _, _, kind = way.partition(", ")
    if not kind:
        return None
    return {"tuned": "rounding", "default": "exact"}.get(kind, kind)


def _whole(model: str, tuned: Plan, others: tuple[str, ...], runs: int, result: Result) -> None:
    arguments = ["--model", model, "--epochs", str(EPOCHS)]
    plain = Script(path=PLAIN, args=tuple(arguments), cwd=str(ROOT))
    hand = [sys.executable, BY_HAND, *arguments, "--tier"]
    engine = [sys.executable, BY_ENGINE, *arguments, "--tier"]
    ways = {
        "plain": lambda: _timed(plain.command()),
        "by hand, exact": lambda: _timed([*hand, "exact"]),
        "run, exact": lambda: _timed([sys.executable, "-m", "hotlap", "run", PLAIN, *arguments]),
        "by hand, rounding": lambda: _timed([*hand, "rounding"]),
        "run, tuned": lambda: _timed_under(plain, tuned),
        "by hand, bf16": lambda: _timed([*hand, "bf16"]),
        "engine, exact": lambda: _timed([*engine, "exact"]),
        "engine, rounding": lambda: _timed([*engine, "rounding"]),
        "engine, bf16": lambda: _timed([*engine, "bf16"]),
        **{
            name: partial(_timed, [sys.executable, path, *arguments, "--settings", kind])
            for name, (path, kind) in _by_peers(others).items()
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs):
        names = list(ways) if number % 2 == 0 else list(reversed(ways))
        for name in names:
            seconds[name].append(ways[name]())
            print(f"{model}: {name}: {seconds[name][-1]:.1f} s", file=sys.stderr)
    for name, values in seconds.items():
        result.figures[f"{model}: {name}: whole_s"] = median(values)
        listed = ", ".join(f"{value:.1f}" for value in values)
        result.notes.append(f"{model}: {EPOCHS} epochs, {name}: {listed} s from start to end")


def _timed(command: list[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.monotonic() - begin


def _timed_under(script: Script, plan: Plan) -> float:
    begin = time.monotonic()
    with open("/dev/null", "w") as nowhere:
        outcome = run_script(script, plan, stdout=nowhere.fileno())
    if outcome.exit_code:
        raise RuntimeError(f"{script} ended with {outcome.exit_code}")
    return time.monotonic() - begin
