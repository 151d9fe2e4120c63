"""A trace is a folder of files that other programs can read, and reads back as it was written."""

import csv
import json
from pathlib import Path

import pytest

from hotlap.task import TaskFacts
from hotlap.trace import store
from hotlap.trace.schema import PHASES, Anchor, Event, HotLine, Trace

TRACE = Trace(
    steps=((1.5, 0.1 + 0.2, 0.0, 0.0, 1e-9), (2.0, 0.0, 0.0, 0.0, 3.0)),
    epoch_starts=(0,),
    facts=TaskFacts(layers={"Linear": 2}),
    anchor=Anchor("optimizer.step", "high", {"backwards": 3}),
    setup_s=1.5,
    lines=(HotLine("data", "a.py:1", 0.5),),
    losses=(0.1,),
    events=(Event(0, "zero_grad", "a.py:3"), Event(1, "backward", "")),
)


def test_it_reads_back_as_it_was_written(tmp_path: Path) -> None:
    store.write(TRACE, tmp_path / "trace")
    assert store.read(tmp_path / "trace") == TRACE
    with pytest.raises(FileNotFoundError):
        store.read(tmp_path)


def test_its_files_are_a_row_for_each_step_and_a_line_for_each_event(tmp_path: Path) -> None:
    store.write(TRACE, tmp_path)
    with open(tmp_path / "steps.csv", newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == PHASES and len(rows) == 2
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"step": 0, "kind": "zero_grad", "where": "a.py:3"}
    assert "steps" not in json.loads((tmp_path / "trace.json").read_text())
