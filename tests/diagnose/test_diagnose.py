"""A real diagnosis, and the rules that it starts from."""

import json
import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.rules import DOCS, RULES, nominate
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.trace.paging import Paging
from hotlap.trace.schema import PHASES, Anchor, HotLine, Trace

TINY = Path(__file__).parents[1] / "tiny.py"
FACTS = TaskFacts(
    loaders=(LoaderFacts("d", 100, 10, 0, True, True, True, "a.py:3", "a.py:9", 10),),
    optimizers=(OptimizerFacts("torch.optim.adam.Adam", "default", 4, 99, "a.py:5"),),
)
TRACE = Trace(
    [(2.0, 0.0, 1.0, 1.0, 0.5, 0.1)] * 10,
    (0,),
    FACTS,
    Anchor("optimizer.step", "high", {}),
    1.0,
    lines=(HotLine("data", "a.py:11", 0.7), HotLine("data", "a.py:3", 0.3)),
)


def rules_of(trace: Trace) -> list[str]:
    return [nomination.rule for nomination in nominate(trace)]


def test_the_rules_name_the_line_and_the_most_it_can_cost() -> None:
    decode, optimizer = nominate(TRACE)
    assert (decode.rule, decode.where, decode.at_most_ms) == ("per_item_decode", "a.py:11", 2.0)
    assert (optimizer.rule, optimizer.where) == ("slow_optimizer", "a.py:5")


def test_what_takes_no_time_is_not_nominated() -> None:
    fast = replace(TRACE, steps=[(0.01, 0.0, 1.0, 1.0, 0.01, 0.1)] * 10)
    assert rules_of(fast) == []


def test_what_the_script_does_already_is_not_nominated() -> None:
    (loader,), (optimizer,) = FACTS.loaders, FACTS.optimizers
    busy = replace(
        FACTS,
        loaders=(replace(loader, num_workers=2),),
        optimizers=(replace(optimizer, implementation="fused"),),
    )
    assert rules_of(replace(TRACE, facts=busy)) == []


def test_memory_that_is_given_back_is_nominated_on_a_cpu_where_it_takes_time() -> None:
    (*_, found) = nominate(replace(TRACE, facts=replace(FACTS, page_faults=5e3, system_ms=1.0)))
    assert (found.rule, found.where, found.at_most_ms) == ("returned_memory", "a.py:5", 1.0)
    assert "5,000 pages" in found.evidence
    assert found.remedies[0].techniques == {"host_allocator": {}}
    for other in (
        {"page_faults": 50.0, "system_ms": 1.0},
        {"page_faults": 5e3, "system_ms": 0.05},
        {"page_faults": 5e3, "system_ms": 1.0, "device": "cuda"},
    ):
        assert "returned_memory" not in rules_of(replace(TRACE, facts=replace(FACTS, **other)))


def test_pages_are_counted_from_the_tenth_step_on() -> None:
    paging = Paging()
    for number in range(14):
        # Far more than the heap holds: mapped, written to and unmapped.
        size = 64 if number >= 10 else 512
        bytearray(size * 2**20)
        paging.step_ends()
    faults, system_ms = paging.each()
    assert 64 * 2**20 / mmap.PAGESIZE * 0.9 < faults < 64 * 2**20 / mmap.PAGESIZE * 2
    assert system_ms > 0
    assert Paging().each() == (0, 0)


def test_every_rule_has_its_page() -> None:
    for name in RULES:
        for heading in ("What it sees", "Why it costs", "What to do", "Evidence"):
            assert heading in DOCS[name], (name, heading)


def test_whole_epochs_are_averaged_with_what_comes_between_them() -> None:
    steps = [(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)] * 21
    steps[10] = (1.0, 0.0, 0.0, 0.0, 0.0, 10.0)
    trace = replace(TRACE, steps=steps, epoch_starts=(0, 10, 20))
    assert trace.covers_whole_periods
    assert trace.phase_means()["other"] == pytest.approx(10 / 20)
    assert trace.step_ms()["median"] == 1.0


def test_a_real_diagnosis_says_all_that_it_promises() -> None:
    argv = f"-m hotlap diagnose {TINY} --epochs 3000 --budget 10s --json".split()
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        cwd=TINY.parent,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["phases"]) == set(PHASES)
    assert sum(found["phases"].values()) == pytest.approx(found["step_ms"]["mean"], rel=0.03)
    assert set(found["step_ms"]) == {"median", "mean", "low", "high", "n"}
    assert found["anchor"]["confidence"] == "high"
    keys = {"rule", "kind", "cost_ms", "at_most_ms", "where", "evidence", "remedy", "numerics"}
    for finding in found["findings"]:
        assert keys <= set(finding)
        assert finding["where"].startswith("tiny.py:")
    costs = [finding["cost_ms"] for finding in found["findings"]]
    assert costs == sorted(costs, reverse=True)
