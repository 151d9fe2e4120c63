"""How soon is a gain found whose size is known?

A technique takes a known part of each step away. It is raced in one live process, again and again,
and in fresh processes beside their twins; on the machine as it is, and beside a process that is
busy 30 % of the time, in bursts.
"""

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.__main__ import Result
from benchmarks.neighbor import busy_neighbor
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab.arm import Arm
from hotlap.lab.duel import Duel
from hotlap.lab.process_race import race
from hotlap.lab.trial import Lab
from hotlap.plan import Plan

ROOT = Path(__file__).parents[1]
_EFFECTS = (1.0, 1.03, 1.05, 1.15, 1.6)
_RACES_A_PROCESS = 5
_AGE = 100
"""Steps, in the first of which the script finds out how long its nap is."""
_WITHIN_S = (5.0, 15.0)
_LIMIT_S = 15.0
_TWINS = ("plain", "plain again", "plain once more")


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--races N` of each effect, `--fresh N` of them in fresh processes."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks power")
    parser.add_argument("--races", type=int, default=2 if quick else 25)
    parser.add_argument("--fresh", type=int, default=1 if quick else 5)
    args = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = str(ROOT)
    result = Result()
    for condition in ("quiet", "busy"):
        with busy_neighbor() if condition == "busy" else contextlib.nullcontext():
            for effect in _EFFECTS:
                found = _live(effect, args.races)
                result.rows.append(_row(condition, effect, "one live process", found))
                found = [_fresh(effect, seed) for seed in range(args.fresh)]
                result.rows.append(_row(condition, effect, "fresh processes", found))
    for row in result.rows:
        if row["raced in"] == "one live process":
            key = f"{row['machine']}, {row['effect']}"
            result.figures[f"{key}: found of {row['n']}"] = row["found"]
    return result


def _live(effect: float, races: int) -> list[tuple[bool, float]]:
    """Return of each race whether a gain was found, and after how many seconds of turns."""
    found: list[tuple[bool, float]] = []
    plan = Plan({"planted": {"effect": effect}})
    while len(found) < races:
        with _lab() as lab, Duel(lab, [plan], step_ms=5.0, age=_AGE, seed=len(found)) as duel:
            for _ in range(min(_RACES_A_PROCESS, races - len(found))):
                one = duel.race([(0,)], seconds=_LIMIT_S)
                found.append((one.decisions[0].state == "faster", one.seconds))
    return found


def _fresh(effect: float, seed: int) -> tuple[bool, float]:
    plan, began = Plan({"planted": {"effect": effect}}), time.monotonic()
    with _lab() as lab:
        arms = [*(Arm(name, Plan(), lab) for name in _TWINS), Arm("planted", plan, lab)]
        one = race(arms, twins=_TWINS, rounds=7, turn_s=0.6, seed=seed)
        return one.gains("planted", one.floor), time.monotonic() - began


def _lab() -> Lab:
    script = Script(path="benchmarks/power_script.py", args=("1000000",), cwd=str(ROOT))
    return Lab(script, techniques=("benchmarks.power_planted:PLANTED",))


def _row(
    condition: str, effect: float, where: str, found: list[tuple[bool, float]]
) -> dict[str, object]:
    gained = [seconds for is_found, seconds in found if is_found]
    row: dict[str, object] = {
        "machine": condition,
        "effect": f"{effect:.2f}x",
        "raced in": where,
        "n": len(found),
        "found": len(gained),
    }
    for limit in _WITHIN_S:
        row[f"within {limit:.0f} s"] = sum(seconds <= limit for seconds in gained)
    row["median s"] = f"{median(gained):.1f}" if gained else "-"
    print(row, file=sys.stderr)
    return row
