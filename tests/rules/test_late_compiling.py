"""Functions that are compiled again while steps are timed are suspected, with what that takes."""

from dataclasses import replace

from hotlap.rules.late_compiling import RULE
from hotlap.task import TaskFacts
from hotlap.trace.process_counts import ProcessCounts
from hotlap.trace.schema import Anchor, HotLine, Trace

COUNTS = ProcessCounts(steps=100, graphs=4, compile_ms=400.0)
TRACE = Trace(
    [(1.0, 4.0, 3.0, 1.0, 1.0)] * 30,
    (0,),
    TaskFacts(backward_where="a.py:9"),
    Anchor("optimizer.step", "high", {}),
    1.0,
    lines=(HotLine("forward", "a.py:5", 0.2), HotLine("forward", "a.py:7", 0.8)),
    process=COUNTS,
)


def test_the_hottest_line_of_the_forward_is_named_with_what_compiling_takes() -> None:
    (found,) = RULE.nominations(TRACE)
    assert (found.where, found.at_most_ms) == ("a.py:7", 4.0)
    assert "4 graphs in 100 steps" in found.evidence and "4.00 of 10.00 ms" in found.evidence
    (found,) = RULE.nominations(replace(TRACE, lines=()))
    assert found.where == "a.py:9"


def test_a_few_graphs_or_a_little_time_are_not_suspected() -> None:
    for few in ({"graphs": 2}, {"compile_ms": 40.0}):
        assert list(RULE.nominations(replace(TRACE, process=replace(COUNTS, **few)))) == []
    assert list(RULE.nominations(replace(TRACE, process=None))) == []


def test_counts_are_read_back_from_json() -> None:
    assert Trace.from_json(TRACE.to_json()).process == COUNTS
    assert Trace.from_json(replace(TRACE, process=None).to_json()).process is None
