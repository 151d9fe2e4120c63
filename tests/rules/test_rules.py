"""Rules nominate by what a trace shows, name the user's line, and say nothing below their share."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap import rules
from hotlap.plan import Plan
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.trace import event_kinds
from hotlap.trace.schema import Anchor, Event, HotLine, Trace

LOADER = LoaderFacts(
    dataset="train.Items",
    length=640,
    batch_size=64,
    num_workers=0,
    map_style=True,
    plain_collate=True,
    training=True,
    where="train.py:30",
    getitem="train.py:12",
    batches=10,
)
ADAM = OptimizerFacts("torch.optim.adam.Adam", "default", 4, 1000, "train.py:33")


def trace(data: float = 0.0, optimizer: float = 0.0, **more: Any) -> Trace:
    """Return a run whose every step takes 10 ms."""
    facts = {"loaders": (LOADER,), "optimizers": (ADAM,)}
    lines = more.pop("lines", ())
    step = (data, 4.0, 10.0 - 4.0 - data - optimizer, optimizer, 0.0)
    anchor = Anchor("optimizer.step", "high", {})
    return Trace([step] * 9, [0], TaskFacts(**{**facts, **more}), anchor, 1.0, lines)


def named(given: Trace) -> list[str]:
    return [nomination.rule for nomination in rules.nominate(given)]


def test_a_run_that_waits_for_nothing_is_suspected_of_nothing() -> None:
    assert named(trace()) == []
    assert named(trace(data=0.29, optimizer=0.29)) == []
    assert named(trace(data=0.31)) == ["per_item_decode"]
    assert named(trace(optimizer=0.31)) == ["slow_optimizer"]


def test_samples_read_one_by_one_are_blamed_on_the_users_line() -> None:
    lines = (HotLine("data", "train.py:30", 0.6), HotLine("data", "train.py:15", 0.3))
    (found,) = rules.nominate(trace(data=5.0, lines=lines))
    assert found.where == "train.py:15"
    assert "waits 5.00 of 10.00 ms" in found.evidence
    assert found.at_most_ms == pytest.approx(5.0)
    assert found.remedies == (Plan({"resident": {}}), Plan({"workers": {"count": 2}}))
    # A line that takes little of the wait is not where it is spent.
    (found,) = rules.nominate(trace(data=5.0, lines=(HotLine("data", "train.py:15", 0.05),)))
    assert found.where == LOADER.getitem


@pytest.mark.parametrize(
    ("loader", "rule"),
    [
        (LOADER, "per_item_decode"),
        (replace(LOADER, num_workers=2), "slow_data"),
        (replace(LOADER, map_style=False, length=None), "slow_data"),
    ],
)
def test_one_rule_looks_at_each_kind_of_loader(loader: LoaderFacts, rule: str) -> None:
    assert named(trace(data=5.0, loaders=(loader,))) == [rule]
    assert named(trace(data=5.0, loaders=(replace(loader, training=False),))) == []


def test_an_optimizer_without_another_implementation_has_a_bound_and_no_remedy() -> None:
    (found,) = rules.nominate(trace(optimizer=4.0))
    assert [str(plan) for plan in found.remedies] == [
        "optimizer(implementation=fused)",
        "optimizer(implementation=foreach)",
    ]
    for other in (replace(ADAM, sparse=True), replace(ADAM, implementation="custom")):
        (found,) = rules.nominate(trace(optimizer=4.0, optimizers=(other,)))
        assert found.remedies == ()
        assert found.bound == Plan({"free_step": {}})
        assert found.by_hand
    assert named(trace(optimizer=4.0, optimizers=(replace(ADAM, implementation="fused"),))) == []
    assert named(trace(optimizer=4.0, device="cuda")) == []


def test_pages_that_come_and_go_are_told_by_their_number_and_the_systems_time() -> None:
    many = {"page_faults": 4000.0, "system_ms": 2.0}
    assert named(trace(**many)) == ["returned_memory"]
    assert named(trace(**many, device="cuda")) == []
    assert named(trace(page_faults=3.0, system_ms=2.0)) == []
    assert named(trace(page_faults=4000.0, system_ms=0.1)) == []


def test_denormal_numbers_are_told_by_how_many_an_optimizer_keeps() -> None:
    (found,) = rules.nominate(trace(optimizer=0.1, denormals=66_379))
    assert found.rule == "denormal_state" and found.where == ADAM.where
    assert found.remedies == (Plan({"flush_denormal": {}}),)
    assert "66,379" in found.evidence and "after 9 steps" in found.evidence
    assert named(trace(optimizer=0.1, denormals=20)) == []
    assert named(trace(optimizer=0.1, denormals=66_379, device="cuda")) == []


def test_a_model_that_one_process_spreads_over_devices_is_told_by_its_wrapper() -> None:
    (found,) = rules.nominate(trace(data_parallel=4))
    assert (found.rule, found.where) == ("data_parallel", ADAM.where)
    assert "it has 4 devices" in found.evidence and found.at_most_ms == pytest.approx(10.0)
    assert "--nproc_per_node 4" in found.by_hand and "--devices 4" in found.by_hand
    for count, words in ((0, "it has no devices here"), (1, "it has one device here")):
        (found,) = rules.nominate(trace(data_parallel=count))
        assert words in found.evidence and "was not measured" in found.evidence
        assert found.at_most_ms == 0.0
    assert named(trace(data_parallel=None)) == []


def test_every_rule_explains_itself() -> None:
    for rule in rules.registry().values():
        text = rule.page
        assert "What it sees" in text and "What to do" in text


def test_a_sum_of_gradients_that_nothing_overlaps_is_blamed_on_the_backward() -> None:
    backward = Event(3, event_kinds.BACKWARD, "train.py:40")
    given = replace(trace(ranks=2, exposed_ms=2.0), events=(backward,))
    (found,) = rules.nominate(given)
    assert (found.rule, found.where) == ("exposed_communication", "train.py:40")
    assert "the first of 2 ranks waits 2.00 of 10.00 ms" in found.evidence
    assert found.at_most_ms == 2.0 and found.remedies == ()
    assert named(trace(ranks=2, exposed_ms=0.9)) == [] == named(trace(exposed_ms=2.0))
