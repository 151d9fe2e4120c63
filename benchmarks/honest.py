"""Does hotlap claim gains that are not there?

Forty duels of a script against itself in fresh processes, each with twins of its own for the noise
floor, and forty tunings that may only use a technique that does nothing, which is switched in one
live process: of two scripts, one of which logs every 20 steps, on the machine as it is and beside a
process that is busy 30 % of the time.
"""

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from benchmarks.__main__ import Result
from benchmarks.neighbor import busy_neighbor
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.lab.arm import Arm
from hotlap.lab.process_race import race
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.tuning.stages import tune

ROOT = Path(__file__).parents[1]
_BUDGET_S = 30
_CONTENDERS = 10
"""Duels that share a race, and its twins: each contender is one."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--duels N`, `--tunings N`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks honest")
    parser.add_argument("--duels", type=int, default=5 if quick else 40)
    parser.add_argument("--tunings", type=int, default=4 if quick else 40)
    args = parser.parse_args(argv)
    result = Result()
    arguments = ("--epochs", "100000", "--samples", "4096")
    script = Script(path="tests/tiny.py", args=arguments, cwd=str(ROOT))
    # Trials import the idle technique by name.
    os.environ["PYTHONPATH"] = str(ROOT)
    _duels(script, args.duels, result)
    logging = Script(path="benchmarks/honest_logging.py", args=("1000000",), cwd=str(ROOT))
    conditions = [(one, busy) for busy in (False, True) for one in (script, logging)]
    for number in range(args.tunings):
        one, busy = conditions[number % len(conditions)]
        with busy_neighbor() if busy else nullcontext():
            _tuning(number + 1, one, busy, host, result)
    return result


def _tuning(number: int, script: Script, busy: bool, host: Host, result: Result) -> None:
    with Lab(script, techniques=("benchmarks.honest_idle:IDLE",)) as lab:
        found = tune(lab, host, budget_s=_BUDGET_S, only=("idle",))
    live = [row.speedup for row in found.trials if row.race == 0 and row.speedup is not None]
    words = "; ".join(f"{one.median:.3f} ({one.low:.3f} to {one.high:.3f})" for one in live)
    row = {"tuning": number, "script": script.path, "machine": "busy" if busy else "quiet"}
    row |= {"live": words, "outcome": found.outcome, "claimed": found.gained}
    result.rows.append(row)
    _say(str(row))
    result.figures["tunings"] = number
    result.figures["tunings that claimed a gain"] = (
        result.figures.get("tunings that claimed a gain", 0) + found.gained
    )


def _duels(script: Script, duels: int, result: Result) -> None:
    """A gain is claimed as `tune` claims it: in two races, with fresh processes in each."""
    done = claims = 0
    while done < duels:
        count = min(_CONTENDERS, duels - done)
        races = [_race(script, count, done + seed) for seed in range(2)]
        floor = max(one.floor for one in races)
        for k in range(count):
            ratios = [one.ratio(f"contender {k}") for one in races]
            claimed = all(one.gains(f"contender {k}", floor) for one in races)
            claims += claimed
            row = {"duel": done + k + 1, "floor": f"{floor:.1%}", "claimed": claimed}
            for number, ratio in enumerate(ratios, 1):
                words = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
                row[f"race {number}"] = words
            result.rows.append(row)
        done += count
        _say(f"{done} duels, {claims} gains claimed")
    result.figures |= {"duels": done, "duels that claimed a gain": claims}


def _race(script: Script, contenders: int, seed: int):
    with Lab(script) as lab:
        names = [f"contender {k}" for k in range(contenders)]
        twins = ["plain", "plain again", "plain once more"]
        order = [twins[0], *names[::2], twins[1], *names[1::2], twins[2]]
        arms = [Arm(name, Plan(), lab) for name in order]
        return race(arms, twins=twins, rounds=8, turn_s=0.25, seed=seed)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
