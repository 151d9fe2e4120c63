"""What `hotlap run` costs beyond `python`: a script that imports torch and takes ten tiny steps.

Each round starts the plain script and the same under `hotlap run`, in an order drawn anew, and
compares the two of that round. Every module is compiled before, as pip leaves an installed package:
a source tree whose bytecode may not be written would be compiled again in every run.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.__main__ import Result
from hotlap.host.facts import Host
from hotlap.lab.statistics import spread

SCRIPT = """\
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(8, 4)
for _ in range(10):
    optimizer.zero_grad()
    (model(batch) ** 2).mean().backward()
    optimizer.step()
"""
_EMPTY = "schema = 1\n"
_EXACT = '[techniques.optimizer]\nimplementation = "foreach"\n\n[techniques.resident]\n'
_PLAIN = "python SCRIPT"


def run(argv: list[str], *, quick: bool, host: Host) -> Result:
    """Measure; option: `--rounds N`."""
    del host
    parser = argparse.ArgumentParser(prog="python -m benchmarks startup")
    parser.add_argument("--rounds", type=int, default=2 if quick else 21)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "empty.toml").write_text(_EMPTY)
        (folder / "exact.toml").write_text(f"{_EMPTY}\n{_EXACT}")
        seen = _in_turns(folder, args.rounds)
    result = Result()
    for way, runs in seen.items():
        _add(result, way, runs, seen[_PLAIN])
    result.notes.append("Each interval is that of the median; all ways run once in every round.")
    return result


def _ways(folder: Path) -> dict[str, list[str]]:
    script = str(folder / "script.py")
    hotlap = [sys.executable, "-m", "hotlap", "run"]
    return {
        _PLAIN: [sys.executable, script],
        "python SCRIPT, again": [sys.executable, script],
        "hotlap run SCRIPT": [*hotlap, script],
        "hotlap run --plan EMPTY SCRIPT": [*hotlap, "--plan", str(folder / "empty.toml"), script],
        "hotlap run --plan EXACT SCRIPT": [*hotlap, "--plan", str(folder / "exact.toml"), script],
    }


def _in_turns(folder: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return way -> seconds, and seconds of CPU, of each round."""
    ways = _ways(folder)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    for command in ways.values():
        _start(command, environment)
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in random.sample(list(ways), len(ways)):
            seen[way].append(_start(ways[way], environment))
    return seen


def _start(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds until a command has ended, and those of CPU, its children's included."""
    quiet = [
        (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0)
        for number in (sys.stdout.fileno(), sys.stderr.fileno())
    ]
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    if status:
        code = os.waitstatus_to_exitcode(status)
        raise RuntimeError(f"`{' '.join(command)}` ended with {code}")
    return wall, used.ru_utime + used.ru_stime


def _add(
    result: Result,
    way: str,
    runs: Sequence[tuple[float, float]],
    plain: Sequence[tuple[float, float]],
) -> None:
    row: dict[str, object] = {"way": way, "n": len(runs)}
    for position, what in enumerate(("wall", "CPU")):
        values = [each[position] for each in runs]
        others = [each[position] for each in plain]
        above = [mine - theirs for mine, theirs in zip(values, others, strict=True)]
        own, more = spread(values), spread(above)
        row[f"{what} s"] = f"{own.median:.3f} ({own.low:.3f} to {own.high:.3f})"
        row["above plain" if what == "wall" else "CPU above plain"] = (
            "" if way == _PLAIN else f"{more.median:+.3f} ({more.low:+.3f} to {more.high:+.3f})"
        )
        if way != _PLAIN:
            result.figures[f"{way}: {what}_s_above_plain"] = more.median
    result.rows.append(row)
