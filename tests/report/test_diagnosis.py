"""A diagnosis as a page and as a document: phases that add up, findings, and what is open."""

from dataclasses import replace

import pytest

from hotlap.diagnosis.findings import Diagnosis, Finding, Opportunity, Suspect
from hotlap.report import diagnosis, jsonout
from hotlap.task import TaskFacts
from hotlap.trace.process_counts import ProcessCounts
from hotlap.trace.schema import PHASES, Anchor, HotLine, Trace
from tests.report.shown import shown, words
from tests.report.test_jsonout import parsed

LINES = (
    *(HotLine("data", f"train.py:{number}", 0.1 * number) for number in range(1, 6)),
    HotLine("optimizer", "train.py:99", 1.0),
)
TRACE = Trace(
    [(6.0, 2.0, 1.0, 0.5, 0.5)] * 20,
    (0,),
    TaskFacts(planned_steps=12_000, planned_why="64 steps of 3 epochs"),
    Anchor("optimizer.step", "high", {}),
    1.0,
    lines=LINES,
)
FINDING = Finding(
    *("per_item_decode", "speed", 5.5, 5.1, 5.9, 6.0, "train.py:12"),
    *("samples are decoded one by one", "`resident` keeps them"),
    *({"resident": {}}, "exact", "high"),
)
SUSPECT = Suspect("slow_data", "train.py:30", "a stream", 6.0, "read ahead", "no technique can")
SWITCH = Opportunity("threads", {"count": 1}, 0.7, 0.5, 0.9, "rounding")
FOUND = Diagnosis(
    "train.py",
    TRACE,
    ("a data base",),
    findings=(FINDING,),
    opportunities=(SWITCH,),
    without_gain=("host_allocator gave 1.00x (0.99 to 1.01)",),
    ruled_out=("slow_optimizer at train.py:33",),
    suspects=(SUSPECT,),
    floor=0.021,
    notes=("the script cannot be interrupted",),
)


def test_the_step_and_its_phases_are_shown_with_their_shares() -> None:
    text = shown(diagnosis.page, FOUND)
    assert "A step takes 10.00 ms on average (median 10.00" in text
    assert "19 steps; no whole epoch)." in text
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in ([p] for p in PHASES)]
    phases = [row for row in rows if row[3].endswith("%") and "train.py" not in row[-1]]
    assert [row[0] for row in phases] == list(PHASES)
    assert [row[3] for row in phases] == ["60.0%", "20.0%", "10.0%", "5.0%", "5.0%"]
    assert len(phases[0][4]) == 24
    whole = replace(FOUND, trace=replace(TRACE, epoch_starts=(0, 10)))
    assert "steps, whole epochs)." in words(diagnosis.page, whole)


def test_what_else_the_process_did_is_told_where_it_matters() -> None:
    quiet = ProcessCounts(100, 50, 5.0, 0.2, peak_bytes=2**30)
    host = ProcessCounts(100, 50, 250.0, 70.0, 4, 3200.0, 2, 900, 2**30, 2**29)
    busy = replace(host, device_retries=3, device_peak_bytes=2**31, device_reserved_bytes=2**32)

    def told(counts: ProcessCounts | None) -> str:
        return words(diagnosis.page, replace(FOUND, trace=replace(TRACE, process=counts)))

    assert told(quiet) == told(None)
    text = told(busy)
    for said in (
        "collector ran 50 times in 100 steps: 2.50 ms a step, 70.0 ms at the longest.",
        "torch.compile made 4 graphs after the first steps, in 3.2 s.",
        "Graph breaks in what is compiled: 2.",
        "(at most 1.00 GiB), 512 MiB are swapped out; 900 pages were read from a disk",
        "give memory of the GPU back 3 times; it held 4.00 GiB at most, of which tensors used 2.00",
    ):
        assert said in text
    # One long pause in many steps is worth a line, too.
    assert "10.0 ms at the longest" in told(replace(quiet, longest_collection_ms=10.0))
    document = replace(FOUND, trace=replace(TRACE, process=busy)).to_json()
    assert document["process"]["collector_ms"] == 250.0


def test_the_hottest_lines_of_large_phases_are_shown_the_hottest_first() -> None:
    assert [line.where for line in FOUND.hot_lines()["data"]] == [
        *("train.py:5", "train.py:4", "train.py:3")
    ]
    text = words(diagnosis.page, FOUND)
    assert "data 3.000 ms 50% train.py:5 data 2.400 ms 40% train.py:4" in text
    # The optimizer takes a twentieth.
    assert "train.py:99" not in text


def test_findings_switches_suspects_and_what_was_ruled_out_are_told_apart() -> None:
    text = words(diagnosis.page, FOUND)
    assert (
        "1. per_item_decode at train.py:12: costs 5.50 ms a step (5.10 to 5.90; a step of "
        "the watched run spent 6.00 ms on it) samples are decoded one by one. Remedy: "
        "`resident` keeps them. "
        "Numerics: exact."
    ) in text
    more = words(
        diagnosis.page, replace(FOUND, findings=(replace(FOUND.findings[0], at_most_ms=3.0),))
    )
    assert "5.90; more than the 3.00 ms that a step of the watched run spent on it) samples" in more
    found = replace(FOUND.findings[0], bound_words="with one batch served again and again")
    more = words(diagnosis.page, replace(FOUND, findings=(found,)))
    assert "5.90; with one batch served again and again, a step takes 6.00 ms less)" in more
    wide = words(diagnosis.page, replace(FOUND, findings=(replace(FOUND.findings[0], low=-0.1),)))
    assert "The interval reaches below 0" in wide and "below 0" not in text
    assert "Opportunity: threads(count=1) saves 0.70 ms a step (0.50 to 0.90)." in text
    assert "Tried, no gain found: host_allocator gave 1.00x (0.99 to 1.01)." in text
    assert "Checked, no gain by itself: slow_optimizer at train.py:33." in text
    assert (
        "Suspected: slow_data at train.py:30: takes up to 6.00 ms of a step a stream. "
        "Not measured: no technique can. Remedy: read ahead."
    ) in text
    assert "Steps were recognised by optimizer.step (confidence high)." in text
    assert "The run takes 12,000 steps: 64 steps of 3 epochs." in text
    assert "Note: the script cannot be interrupted." in text
    assert text.endswith("Trials could still have changed: a data base")


@pytest.mark.parametrize(
    ("changes", "words_"),
    [
        ({"suspects": ()}, "No remedy gains more than identical runs differ (2.1%)"),
        ({}, "No cause was measured. Suspected causes: Suspected: slow_data at train.py:30"),
        ({"suspects": (), "floor": None}, "No rule applies"),
        ({"suspects": (), "ruled_out": ()}, "No rule applies"),
    ],
)
def test_that_nothing_was_found_claims_no_more_than_was_measured(
    changes: dict[str, object], words_: str
) -> None:
    found = replace(FOUND, findings=(), **changes)  # pyright: ignore[reportArgumentType]
    assert words_ in words(diagnosis.page, found)


def test_what_a_script_calls_its_files_does_not_reach_the_terminal_raw() -> None:
    evil = "\x1b[2J.py:1"
    found = replace(
        FOUND,
        script=evil,
        trace=replace(TRACE, lines=(HotLine("data", evil, 0.9),)),
        findings=(replace(FINDING, where=evil, evidence=evil, remedy=evil),),
        suspects=(replace(SUSPECT, where=evil, evidence=evil, why=evil, remedy=evil),),
        ruled_out=(evil,),
        notes=(evil,),
    )
    text = shown(diagnosis.page, found)
    assert "\x1b" not in text and text.count("\\x1b[2J.py:1") == 11


def test_the_document_says_the_same_in_strict_json() -> None:
    data = parsed(jsonout.document(FOUND.to_json()))
    assert data["schema"] == 1 and data["noise_floor"] == 0.021
    assert sum(data["phases"].values()) == pytest.approx(data["step_ms"]["mean"])
    assert [row["cost_ms"] for row in data["findings"]] == [5.5]
    assert [row["rule"] for row in data["suspects"]] == ["slow_data"]
    assert [row["where"] for row in data["lines"]] == ["train.py:5", "train.py:4", "train.py:3"]
    assert data["planned_steps"] == 12_000 and data["covers_whole_epochs"] is False
