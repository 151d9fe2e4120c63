"""Writes and reads a trace as files in a folder. No torch.

`steps.csv` has a row for each step and a column for each phase, in ms; `events.jsonl` an object for
each event; `trace.json` holds the rest.
"""

import csv
import json
from dataclasses import asdict
from pathlib import Path

from hotlap.trace.schema import PHASES, Trace

_TRACE, _STEPS, _EVENTS = "trace.json", "steps.csv", "events.jsonl"


def write(trace: Trace, folder: Path) -> None:
    """Write a trace into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / _STEPS, "w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(PHASES)
        rows.writerows(trace.steps)
    with open(folder / _EVENTS, "w") as stream:
        for event in trace.events:
            stream.write(json.dumps(asdict(event)) + "\n")
    rest = trace.to_json()
    del rest["steps"], rest["events"]
    (folder / _TRACE).write_text(json.dumps(rest))


def read(folder: Path) -> Trace:
    """Read back what `write` wrote.

    Raises:
        FileNotFoundError: there is none.
    """
    rest = json.loads((folder / _TRACE).read_text())
    with open(folder / _STEPS, newline="") as stream:
        _, *rows = csv.reader(stream)
    steps = [[float(value) for value in row] for row in rows]
    with open(folder / _EVENTS) as stream:
        events = [json.loads(line) for line in stream]
    return Trace.from_json({**rest, "steps": steps, "events": events})
