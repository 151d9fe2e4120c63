"""Training scripts of many kinds, as people write them: what `tune` gives each, unedited.

Each is tuned; then the plain script, the plan, and the script as one would change it by hand train
in turns. `subjects/by_hand.toml` has those changes. Official examples of other packages take part
where a folder has them, see `PEERS`.
"""

import argparse
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, fsum, log
from pathlib import Path

from benchmarks.__main__ import Result
from benchmarks.races import TWINS, Races, raced
from benchmarks.scripts_grid import try_grid
from hotlap.attach.entry import Script
from hotlap.errors import HotlapError
from hotlap.host.facts import Host
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.tuning.result import Tuning
from hotlap.tuning.stages import tune

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "subjects"
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "fashion_mnist": ("--epochs", "10"),
    "jpeg": ("--epochs", "10"),
    "gpt": ("--size", "1m", "--steps", "600"),
}
PEERS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "pytorch word_language_model": (
        "examples/word_language_model",
        "main.py",
        ("--epochs", "2", "--emsize", "64", "--nhid", "64"),
    ),
    "pytorch word_language_model, AdamW": (
        "examples/word_language_model",
        "main.py",
        ("--epochs", "2", "--emsize", "64", "--nhid", "64", "--use-optimizer", "--lr", "0.001"),
    ),
    "pytorch regression": ("examples/regression", "main.py", ()),
    "minGPT adder": (
        "minGPT",
        "projects/adder/adder.py",
        ("--model.model_type=gpt-nano", "--trainer.max_iters=3000"),
    ),
    "minGPT chargpt": (
        "minGPT",
        "projects/chargpt/chargpt.py",
        ("--model.model_type=gpt-nano", "--trainer.max_iters=1500"),
    ),
}
"""Name -> (folder in that of `--peers`, script, arguments)."""
_WORTH = 1.2
"""What the remedy by hand must give for the plan to have to give `_LEAST`."""
_LEAST = 1.1


@dataclass(frozen=True)
class Subject:
    """A script, and what by hand makes it faster."""

    name: str
    script: Script
    by_hand: tuple[Mapping[str, str], ...] = ()
    """Texts of the script to be replaced, `old` -> `new`."""

    def changed_by_hand(self, folder: Path) -> Script:
        """Write the script with its changes into `folder`.

        Raises:
            ValueError: a text to be replaced does not occur exactly once.
        """
        text = (Path(self.script.cwd) / str(self.script.path)).read_text()
        for change in self.by_hand:
            if text.count(change["old"]) != 1:
                raise ValueError(f"{self.name}: this must occur once: {change['old']!r}")
            text = text.replace(change["old"], change["new"])
        path = folder / f"{self.name}.py"
        path.write_text(text)
        return Script(path=str(path), args=self.script.args, cwd=str(folder))


def subjects(peers: Path | None) -> dict[str, Subject]:
    """Return our own scripts, the examples, and those of the packages under `peers`."""
    changes = tomllib.loads((FOLDER / "by_hand.toml").read_text())
    found = [
        Subject(
            path.stem, Script(path=path.name, cwd=str(FOLDER)), tuple(changes.get(path.stem, ()))
        )
        for path in sorted(FOLDER.glob("*.py"))
    ]
    for name, args in EXAMPLES.items():
        folder = str(ROOT / "examples" / name)
        found.append(Subject(name, Script(path="plain.py", args=args, cwd=folder)))
    for name, (folder, path, args) in PEERS.items() if peers is not None else ():
        where = str(peers / folder)
        found.append(Subject(name, Script(path=path, args=args, cwd=where)))
    return {subject.name: subject for subject in found}


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; options: `--subject NAME` (repeatable), `--budget SECONDS`, `--rounds N`,
    `--turn SECONDS`, `--peers FOLDER`, `--grid NAME` (repeatable)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scripts")
    parser.add_argument("--peers", type=Path, help="a folder with `examples` and `minGPT` in it")
    parser.add_argument("--subject", action="append")
    parser.add_argument(
        "--grid", action="append", default=[], help="a subject whose pick a grid of plans checks"
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each tuning")
    parser.add_argument("--rounds", type=int, default=3 if quick else 7)
    parser.add_argument("--turn", type=float, default=0.3 if quick else 0.7, help="seconds")
    args = parser.parse_args(argv)
    known = subjects(args.peers)
    for name in (*(args.subject or ()), *args.grid):
        if name not in known:
            parser.error(f"{name!r} is not known. Allowed: {', '.join(known)}")
    if args.peers is not None:
        # minGPT's scripts import their package by name.
        paths = (str(args.peers / "minGPT"), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result = Result()
    for name in args.subject or known:
        row = _measure(known[name], args, host)
        result.rows.append(row)
        print(*row.values(), sep="  ", file=sys.stderr, flush=True)
    _sum_up(result)
    return result


def _measure(subject: Subject, args: argparse.Namespace, host: Host) -> dict[str, object]:
    row: dict[str, object] = {
        "script": subject.name,
        "ms/step": "",
        "plan x plain": "",
        "by hand x plain": "",
        "said": "",
        "verdict": "",
        "seconds": "",
        "plan": "",
    }
    try:
        with Lab(subject.script) as lab:
            found = tune(
                lab,
                host,
                budget_s=args.budget,
                progress=lambda text: print(f"{subject.name}: {text}", file=sys.stderr),
            )
    except HotlapError as error:
        return row | {"plan": str(error).splitlines()[0]}
    said = f"{found.speedup.median:.2f}" if found.gained else found.outcome
    row |= {"said": said, "verdict": found.verdict.tier, "seconds": f"{found.seconds:.0f}"}
    row["plan"] = str(found.plan) if found.gained else found.reason
    with tempfile.TemporaryDirectory() as folder:
        races = _race(subject, found, Path(folder), args)
    if found.gained and subject.name in args.grid:
        row["plan"] = f"{found.plan}; {_against_grid(subject, found, args)}"
    row["ms/step"] = f"{races.spread('plain').median:.2f}"
    for way, column in (("plan", "plan x plain"), ("by hand", "by hand x plain")):
        if way in races.ways:
            ratio = races.x_plain(way)
            row[column] = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return row


def _race(subject: Subject, found: Tuning, folder: Path, args: argparse.Namespace) -> Races:
    ways = dict.fromkeys(TWINS, (subject.script, Plan()))
    if found.gained:
        ways["plan"] = (subject.script, found.plan)
    if subject.by_hand:
        ways["by hand"] = (subject.changed_by_hand(folder), Plan())
    return raced(subject.name, ways, starts=1, rounds=args.rounds, turn_s=args.turn)


def _against_grid(subject: Subject, found: Tuning, args: argparse.Namespace) -> str:
    """Return in words how the pick compares to the best plan of a grid, and what both took."""
    checked = try_grid(
        subject.name, subject.script, found.plan, rounds=args.rounds, turn_s=args.turn
    )
    if checked is None:
        return "no plan of the grid took a turn"
    ratio = checked.pick_x_best
    return (
        f"grid: best {checked.best}; pick x best {ratio.median:.3f} ({ratio.low:.3f} to "
        f"{ratio.high:.3f}); the grid took {checked.seconds:.0f} s"
    )


def _sum_up(result: Result) -> None:
    """Add the figures: a script for which there is no plan counts as 1."""
    gains, missed = [], []
    for row in result.rows:
        ours, theirs = (
            float(str(row[column]).split()[0]) if row[column] else 1.0
            for column in ("plan x plain", "by hand x plain")
        )
        gains.append(ours)
        if theirs >= _WORTH and ours < _LEAST:
            missed.append(row["script"])
    result.figures = {
        "scripts": len(gains),
        "geometric mean": exp(fsum(map(log, gains)) / len(gains)),
        "slower than plain by 3 %": sum(gain < 0.97 for gain in gains),
        f"by hand at least {_WORTH}, by plan less than {_LEAST}": len(missed),
    }
    result.notes += [f"{name}: {value:.3g}" for name, value in result.figures.items()]
    if missed:
        result.notes.append(f"missed: {', '.join(map(str, missed))}")
