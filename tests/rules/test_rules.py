"""Rules nominate by what a trace shows, name the user's line, and say nothing below their share."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hotlap import rules
from hotlap.plan import Plan
from hotlap.task import GradientSums, LoaderFacts, OptimizerFacts, TaskFacts
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


def test_remedies_of_an_optimizer_are_those_that_torch_has() -> None:
    (found,) = rules.nominate(
        trace(optimizer=4.0, optimizers=(replace(ADAM, name="torch.optim.rmsprop.RMSprop"),))
    )
    assert [str(plan) for plan in found.remedies] == ["optimizer(implementation=foreach)"]
    assert found.advice["optimizer"] == "RMSprop(..., foreach=True)"
    (found,) = rules.nominate(
        trace(optimizer=4.0, optimizers=(replace(ADAM, name="torch.optim.radam.RAdam"),))
    )
    assert found.remedies == () and "no faster implementation" in found.by_hand
    # Most of its step is the closure's.
    lbfgs = replace(ADAM, name="torch.optim.lbfgs.LBFGS")
    assert named(trace(optimizer=4.0, optimizers=(lbfgs,))) == []


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


SUMS = GradientSums(per_step=1.0, ms=1.0, searches=True, looks=8)


def test_a_search_that_finds_nothing_is_blamed_on_the_wrapper() -> None:
    wrap = Event(0, event_kinds.WRAP, "train.py:20")
    given = replace(trace(ranks=2, exposed_ms=0.5, sums=SUMS), events=(wrap,))
    (found,) = rules.nominate(given)
    assert (found.rule, found.where) == ("unused_parameter_search", "train.py:20")
    assert "none was found in the 8 steps" in found.evidence
    assert found.bound == Plan({"no_search": {}}) and found.at_most_ms == pytest.approx(4.5)
    for other in (
        replace(SUMS, searches=False),
        replace(SUMS, unused_bytes=4),
        # Nothing is known of what it found.
        replace(SUMS, looks=0),
    ):
        assert named(trace(ranks=2, sums=other)) == []
    assert named(trace(ranks=1, sums=SUMS)) == [] == named(trace(ranks=2))


def test_sums_after_every_micro_batch_are_blamed_on_the_backward() -> None:
    four = replace(SUMS, per_step=3.9, searches=False)
    backward = Event(3, event_kinds.BACKWARD, "train.py:40")
    (found,) = rules.nominate(replace(trace(ranks=2, sums=four), events=(backward,)))
    assert (found.rule, found.where) == ("sum_per_micro_batch", "train.py:40")
    assert "over 2 ranks 3.9 times for each step" in found.evidence
    assert found.bound == Plan({"fewer_sums": {"every": 4}})
    assert found.at_most_ms == pytest.approx(2.9)
    # A backward takes 6 ms here, and a sum in it no more than that.
    (found,) = rules.nominate(trace(ranks=2, sums=replace(four, ms=50.0)))
    assert found.at_most_ms == pytest.approx(6.0)
    for other in (replace(four, per_step=1.0), replace(four, ms=0.01)):
        assert named(trace(ranks=2, sums=other)) == []
    assert named(trace(ranks=2, sums=four, optimizers=(ADAM, ADAM))) == []


def test_epochs_in_the_same_order_are_a_mistake_that_costs_nothing() -> None:
    same = replace(LOADER, orders=((0, 0), (0, 0)))
    (found,) = rules.nominate(trace(ranks=2, loaders=(same,)))
    assert (found.rule, found.kind, found.where) == ("repeated_order", "mistake", LOADER.where)
    assert "in each of the 2 epochs" in found.evidence and found.at_most_ms == 0.0
    for orders in ((), ((0, 0),), ((0, 0), (0, 1)), ((0, 0), (1, 0))):
        assert named(trace(loaders=(replace(LOADER, orders=orders),))) == []


def test_an_optimizer_whose_parameters_are_not_the_models_is_a_mistake() -> None:
    stale = replace(ADAM, lost=4, left=4, left_in="FSDPLinear")
    (found,) = rules.nominate(trace(optimizers=(stale,)))
    assert (found.rule, found.kind, found.where) == ("stale_optimizer", "mistake", ADAM.where)
    assert found.evidence.startswith("4 of the 4 tensors") and "FSDPLinear" in found.evidence
    # A layer that the first step does not use, or one that is not to be trained, is none.
    for other in (replace(stale, left=0), replace(stale, lost=0)):
        assert "stale_optimizer" not in named(trace(optimizers=(other,)))


def test_what_ranks_say_of_their_sums_is_read_back() -> None:
    given = trace(ranks=2, sums=SUMS, loaders=(replace(LOADER, orders=((0, 0), (0, 1))),))
    assert Trace.from_json(json.loads(json.dumps(given.to_json()))).facts == given.facts
