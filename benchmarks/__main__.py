"""python -m benchmarks NAME [--quick] [--json]: a table, or JSON with `figures` and `rows`."""

import argparse
import importlib
import json
import sys
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from hotlap.host.facts import Host

NAMES = {
    "lecture": "the plain loop, the best loops by hand, `hotlap run` and the engine, in turns",
    "overhead": "what a step costs beyond the loop that one writes by hand: the engine, the peers",
    "hooks": "what hotlap's hooks cost a step that is observed, in turns in one process",
    "startup": "what `hotlap run` costs beyond `python`, of a script that takes ten tiny steps",
    "feed": "batches a second, with nothing behind them; a folder of JPEG files",
    "accuracy": "test accuracy over seeds, the plain script and the engine's tiers",
    "gpt": "a GPT: the plain loop, the best loops by hand and the engine, in reduced precision too",
    "memory": "what a step is predicted to hold and what it holds, and what each remedy does",
    "sharding": "bytes of each of several ranks that share a model, predicted and measured",
    "micro_batch": "the largest micro-batch that fits and the fastest one, against a grid",
    "search": "successive halving against random search of the same configurations, over seeds",
    "monitor": "what system metrics cost a training: CPU time of their thread, a duel in turns",
    "search_kills": "a search of real trials that is killed at random again and again: same end?",
    "gpu": "on a GPU: its tests, an MLP, GPT-2 124M, ceilings and each technique, in parts",
    "ranks": "two ranks on this machine: hotlap's own against plain torch DDP, by hand",
    "flat": "one flat buffer for all parameters against many tensors, Adam",
    "denormals": "which operators this CPU computes more slowly on denormal numbers",
    "loaders": "`hotlap run` without a plan, on loaders with workers, samplers, augmentation",
    "scripts": "training scripts of many kinds, unedited: what a tuned plan gives, and by hand",
    "truths": "honest techniques on loops of many kinds: does a verdict call one a change?",
    "lies": "techniques that change what is learned: does a verdict let one through?",
    "proof": "what a proof takes beside the plain run of as many steps",
    "planted": "scripts with one known problem each, and clean ones: what does `diagnose` find?",
    "minute": "`tune` within a minute, quiet and not: its picks, and its predictions of whole runs",
    "power": "a gain of known size: how soon is it found, in one live process and in fresh ones?",
    "honest": "duels of identical runs, and tunings that may only use what does nothing",
}


@dataclass
class Result:
    """What a benchmark measured."""

    figures: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: bool = False
    """Not all of it was measured; the exit code is then 1."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=sorted(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, to see that it works")
    parser.add_argument("--json", action="store_true")
    args, rest = parser.parse_known_args()
    host = Host.detect()
    result: Result = importlib.import_module(f"benchmarks.{args.name}").run(
        rest, quick=args.quick, host=host
    )
    busy = f"{host.busy_cores:.1f} cores were busy with other processes at the start"
    line = f"{host.cpu}, {host.cores} cores, torch {host.torch}; {busy}"
    if args.json:
        document = {"host": line, "figures": result.figures, "rows": result.rows}
        json.dump({"schema": 1, **document, "notes": result.notes}, sys.stdout, indent=2)
        print()
        return int(result.failed)
    console = Console(markup=False, highlight=False, width=max(120, Console().width))
    console.print(line)
    # Rows of other columns make a table of their own.
    for columns, rows in groupby(result.rows, key=tuple):
        table = Table(*columns, box=None)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
    for note in result.notes:
        console.print(note)
    return int(result.failed)


if __name__ == "__main__":
    sys.exit(main())
