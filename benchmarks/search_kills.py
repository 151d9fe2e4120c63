"""A search of real trials, killed many times at random: does it end as one that was not?

With one worker the killed search must give the trials, values and decisions of the uninterrupted
one. With two, trials end in another order, so its journal is replayed: each decision must follow
from the lines before it. After each kill no trial may be left running.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.search.journal import read
from hotlap.search.parameters import Space
from hotlap.search.propose import distributions_of
from hotlap.search.spec import SearchSpec
from hotlap.search.state import SearchState
from hotlap.search.study import JOURNAL, decision

RECIPE = Path(__file__).parents[1] / "tests" / "search" / "searched_recipe.py"
_ENDED = ("number", "parameters", "state", "step", "value", "rungs", "seeds")
"""What of a trial does not depend on time."""
_GONE_S = 30.0
_LINES = 9
"""Of the journal, one fewer of which are waited for at most; a job has three."""


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Kill searches; options: `--workers 1 2`, `--kills N`, `--trials N`, `--after S`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks search_kills")
    parser.add_argument("--kills", type=int, default=4 if quick else 20)
    parser.add_argument("--trials", type=int, default=6 if quick else 30)
    parser.add_argument("--seeds", type=int, default=0, help="of `hotlap search`")
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    parser.add_argument("--after", type=float, default=2.0, help="most seconds of a moment")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args(argv)
    result = Result()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        shutil.copy(RECIPE, folder / "recipe.py")
        asked = ["--trials", str(args.trials), "--seeds", str(args.seeds)]
        for workers in args.workers:
            killed = Search(folder, f"killed-{workers}", [*asked, "--workers", str(workers)])
            killed.kill(args.kills, args.after, random.Random(f"{args.seed} {workers}"))
            killed.end()
            row = killed.row(workers)
            if workers == 1:
                whole = Search(folder, "whole", [*asked, "--workers", "1"])
                whole.end()
                row["ends as uninterrupted"] = killed.learned() == whole.learned()
                row["decisions as uninterrupted"] = killed.decisions() == whole.decisions()
            result.rows.append(row)
            result.failed |= False in row.values() or sum(killed.kills.values()) < args.kills
    if result.failed:
        result.notes.append("this is not what it should be, or a search ended before all kills")
    return result


class Search:
    """A search in a folder of its own, which can be killed and continued."""

    def __init__(self, here: Path, name: str, asked: list[str]) -> None:
        self.here, self.folder, self.begun = here, here / name, time.monotonic()
        self.kills: Counter[str] = Counter()
        self.running_at_kill: list[int] = []
        self.gone_s: list[float] = []
        """Seconds until no trial of a killed search was running."""
        self.found: dict[str, Any] = {}
        command = [sys.executable, "-m", "hotlap", "search", "recipe.py", "--json"]
        command += ["--objective", "max:accuracy", "--run-dir", str(self.folder), *asked]
        self._command = command

    def kill(self, count: int, longest_s: float, drawn: random.Random) -> None:
        """Start the search and kill it after a while, so many times, or until it ends.

        The while is a number of lines of its journal, so that kills are spread over the search on
        a slow machine, too, and a moment more; or, once in five times, a moment after its start.
        """
        for number in range(count):
            with open(self.here / "log.txt", "ab") as log:
                process = subprocess.Popen(
                    self._command, cwd=self.here, stdout=log, stderr=log, start_new_session=True
                )
            until = self._lines() + drawn.randrange(_LINES)
            while process.poll() is None and self._lines() < until and number % 5 != 4:
                time.sleep(0.02)
            try:
                process.wait(drawn.uniform(0.0, longest_s))
                return
            except subprocess.TimeoutExpired:
                self._kill(process, ("alone", "with its trials")[drawn.randrange(2)])
            state = f"kill {number + 1} of {count}, {len(self.decisions())} decisions"
            print(f"{self.folder.name}: {state}", file=sys.stderr, flush=True)

    def _kill(self, process: "subprocess.Popen[bytes]", kind: str) -> None:
        trials = self._trials()
        self.running_at_kill.append(len(trials))
        self.kills[kind] += 1
        at = time.monotonic()
        process.kill()
        for trial in trials if kind != "alone" else ():
            with contextlib.suppress(psutil.Error):
                trial.kill()
        process.wait()
        while self._trials():
            if time.monotonic() > at + _GONE_S:
                raise RuntimeError(f"a trial outlived its search by {_GONE_S:.0f} s")
            time.sleep(0.05)
        self.gone_s.append(time.monotonic() - at)

    def _trials(self) -> list[psutil.Process]:
        """Return the processes of trials that run in this folder, whoever has started them."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_zombie = each.status() == psutil.STATUS_ZOMBIE
                if not is_zombie and "hotlap.search.rung" in each.cmdline():
                    found += [each] if each.cwd() == os.fspath(self.here) else []
        return found

    def end(self) -> None:
        """Let the search end."""
        done = subprocess.run(
            self._command, cwd=self.here, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.folder.name} ended with {done.returncode}:\n{done.stderr}")
        self.found = json.loads(done.stdout)

    def learned(self) -> Any:
        """Return what of the result does not depend on time."""
        trials = [{key: trial[key] for key in _ENDED} for trial in self.found["trials"]]
        best = self.found["best"]
        return trials, best["number"], best["value"], self.found["steps"], self.found["comparison"]

    def _lines(self) -> int:
        path = self.folder / JOURNAL
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def decisions(self) -> list[dict[str, Any]]:
        """Return the lines of the journal that are decisions."""
        path = self.folder / JOURNAL
        records = read(path)[0] if path.is_file() else []
        return [record for record in records if record["kind"] == "job"]

    def follows(self) -> bool:
        """True if each decision of the journal follows from the lines before it."""
        records, _ = read(self.folder / JOURNAL)
        spec = SearchSpec.from_json(records[0])
        space = Space(distributions_of(spec.space), {}, dict(spec.defaults or {}))
        state = SearchState(spec)
        for record in records:
            if record["kind"] == "job" and decision(state, space) != record:
                return False
            state.apply(record)
        return True

    def row(self, workers: int) -> dict[str, Any]:
        """Return what was seen of it."""
        left = len(self._trials())
        return {
            "workers": workers,
            "trials": len(self.found["trials"]),
            "kills": sum(self.kills.values()),
            **{f"of it {kind}": self.kills[kind] for kind in ("alone", "with its trials")},
            "while trials ran": sum(count > 0 for count in self.running_at_kill),
            "gone after s, at most": f"{max(self.gone_s, default=0.0):.2f}",
            "none left running": not left,
            "decisions": len(self.decisions()),
            "follow from the journal": self.follows(),
            "minutes": f"{(time.monotonic() - self.begun) / 60:.1f}",
        }
