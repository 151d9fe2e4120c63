"""`hotlap tune` of the FashionMNIST script within a minute, again and again, quiet and not.

One long tuning says which plan is to be found. The short ones follow, on the machine as it is and
beside a process that is busy 30 % of the time, in turns; other picks than that plan are raced
against it. Now and then whole runs are timed, of the plain script and under each plan that was
picked since, to be compared with what was predicted of them: hosts become slower within an hour.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import ceil, nan
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.__main__ import Result
from benchmarks.neighbor import busy_neighbor
from benchmarks.races import TWINS, raced
from hotlap.attach.entry import Script
from hotlap.host.facts import Host
from hotlap.plan import Plan

FOLDER = Path(__file__).parents[1] / "examples" / "fashion_mnist"
KINDS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "quiet": nullcontext,
    "busy": busy_neighbor,
}
_NEAR_PICK, _NEAR_TIME = 0.03, 0.10


@dataclass
class Picked:
    """One tuning."""

    kind: str
    told: Mapping[str, Any]
    file: Path
    """Its plan file, if there is a plan."""
    ratio: float = 1.0
    """How many times as fast as the long tuning's plan its own is."""
    realized: dict[str, float] = field(default_factory=dict)
    """`baseline_s` and `best_s`, as they came out beside the same."""

    @property
    def plan(self) -> Plan:
        return Plan(self.told["plan"])

    def off(self, name: str) -> float | None:
        """Return by which share a prediction is off, None if nothing was predicted.

        Args:
            name: `baseline_s` or `best_s`.
        """
        predicted = self.told["whole_run"][name]
        return None if predicted is None else predicted / self.realized[name] - 1


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--repetitions N` of each kind, `--budget S`, `--long S` of the tuning
    that comes first, `--runs N`: how often whole runs are timed, `--epochs N`, `--beside KIND`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks minute")
    parser.add_argument("--repetitions", type=int, default=1 if quick else 10)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--long", type=float, default=60.0 if quick else 300.0)
    parser.add_argument("--runs", type=int, default=1 if quick else 3)
    parser.add_argument("--epochs", type=int, default=3 if quick else 10)
    parser.add_argument("--beside", choices=[*KINDS], help="one kind only")
    args = parser.parse_args(argv)
    kinds = [args.beside] if args.beside else [*KINDS]
    every = ceil(args.repetitions / args.runs)
    script = Script(path="plain.py", args=("--epochs", str(args.epochs)), cwd=str(FOLDER))
    with tempfile.TemporaryDirectory() as folder:
        wanted = _tune(script, "quiet", args.long, Path(folder) / "wanted.toml")
        found: list[Picked] = []
        waiting = [wanted]
        for number in range(args.repetitions):
            for kind in kinds:
                file = Path(folder) / f"{number}-{kind}.toml"
                waiting.append(_tune(script, kind, args.budget, file))
            if (number + 1) % every == 0 or number + 1 == args.repetitions:
                _realize(script, waiting)
                found += waiting
                waiting = []
        found.remove(wanted)
        _race_picks(script, wanted, found)
    return _result(wanted, found)


def _tune(script: Script, kind: str, budget_s: float, file: Path) -> Picked:
    command = ["tune", "--json", "--again", "--budget", f"{budget_s:g}s"]
    with KINDS[kind]():
        done = _hotlap([*command, "--out", str(file)], script)
    picked = Picked(kind, json.loads(done.stdout), file)
    said = f"{picked.told['outcome']}, {picked.plan}, {picked.told['verdict']['tier']}"
    _say(f"{kind}: {said}, {picked.told['seconds']:.0f} s")
    return picked


def _hotlap(words: list[str], script: Script) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hotlap", *words, str(script.path), *script.args],
        cwd=script.cwd,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )


def _race_picks(script: Script, wanted: Picked, found: list[Picked]) -> None:
    """Note how fast the picks are, each beside the plan that was to be found."""
    others = {str(each.plan): each.plan for each in found if each.plan.hash != wanted.plan.hash}
    if not others:
        return
    ways = dict.fromkeys(TWINS, (script, Plan())) | {"wanted": (script, wanted.plan)}
    ways |= {name: (script, plan) for name, plan in others.items()}
    races = raced("picks", ways, starts=2, rounds=10, turn_s=0.7)
    for each in found:
        if each.plan.hash == wanted.plan.hash:
            continue
        name = str(each.plan)
        is_raced = {"wanted", name} <= {*races.ways}
        each.ratio = races.compare("wanted", name).median if is_raced else nan


def _realize(script: Script, found: list[Picked]) -> None:
    """Time whole runs, beside the same as the tunings that predicted them, the plain ones first."""
    plans = {Plan().hash: Plan()} | {each.plan.hash: each.plan for each in found}
    files = {each.plan.hash: each.file for each in found}
    for kind in KINDS:
        some = [each for each in found if each.kind == kind]
        seconds: dict[str, float] = {}
        for name in plans:
            if any(name in _hashes(each) for each in some):
                seconds[name] = _time(script, kind, None if name == Plan().hash else files[name])
                _say(f"{kind}: a run under {plans[name] or 'no plan'} took {seconds[name]:.1f} s")
        for each in some:
            best, plain = (seconds[name] for name in _hashes(each))
            each.realized = {"best_s": best, "baseline_s": plain}
            told = each.told["whole_run"]
            _say(f"{kind}: predicted {told['baseline_s']} s plain, {told['best_s']} s")


def _hashes(picked: Picked) -> tuple[str, str]:
    return picked.plan.hash, Plan().hash


def _time(script: Script, kind: str, plan: Path | None) -> float:
    began = time.monotonic()
    with KINDS[kind]():
        if plan is None:
            command = [sys.executable, str(script.path), *script.args]
            subprocess.run(command, cwd=script.cwd, stdout=subprocess.DEVNULL, check=True)
        else:
            _hotlap(["run", "--plan", str(plan)], script)
    return time.monotonic() - began


def _result(wanted: Picked, found: list[Picked]) -> Result:
    result = Result()
    tier = wanted.told["verdict"]["tier"]
    for kind in KINDS:
        some = [each for each in found if each.kind == kind]
        if not some:
            continue
        is_near = [
            abs(each.ratio - 1) <= _NEAR_PICK and each.told["verdict"]["tier"] == tier
            for each in some
        ]
        offs = [off for each in some for off in map(each.off, ("baseline_s", "best_s"))]
        known = [off for off in offs if off is not None]
        result.figures |= {
            f"{kind}: tunings": len(some),
            f"{kind}: picks within {_NEAR_PICK:.0%} and of the same tier": sum(is_near),
            f"{kind}: predictions": len(known),
            f"{kind}: predictions within {_NEAR_TIME:.0%}": sum(
                abs(off) <= _NEAR_TIME for off in known
            ),
            f"{kind}: median of |predicted / realized - 1|": median(map(abs, known))
            if known
            else nan,
        }
    result.rows = [_row(each) for each in (wanted, *found)]
    result.notes = [f"{name}: {value:.3g}" for name, value in result.figures.items()]
    result.notes.append(
        "the first row is the long tuning; `x wanted` is a step of its plan by one of the pick's; "
        "predicted and realized are seconds of the whole run, plain and under the plan"
    )
    return result


def _row(picked: Picked) -> dict[str, Any]:
    whole = picked.told["whole_run"]
    row = {
        "beside": picked.kind,
        "seconds": f"{picked.told['seconds']:.0f}",
        "plan": str(picked.plan),
        "tier": picked.told["verdict"]["tier"],
        "x wanted": f"{picked.ratio:.3f}",
        "not reached": len(picked.told["not_reached"]),
    }
    for name in ("baseline_s", "best_s"):
        predicted = "none" if whole[name] is None else f"{whole[name]:.1f}"
        row[name] = f"{predicted}, {picked.realized[name]:.1f}"
    return row


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
