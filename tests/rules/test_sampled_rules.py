"""Rules that read sampled statements: what is named, what it costs, and what stays unsaid."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.rules import Nomination, nominate
from hotlap.trace.schema import Spot, Trace
from tests.rules.test_rules import LOADER, trace

SPOT = Spot(
    phase="other",
    statement="train.py:40",
    where="train.py:41",
    library="",
    share=0.3,
    samples=200,
    text="table[label] += 1",
    loop="",
    loop_where="",
    over_parameters=False,
    evaluates=False,
)


def found(*spots: Spot, evaluations: int = 0, **facts: Any) -> list[Nomination]:
    given = replace(trace(**facts), spots=spots, evaluations=evaluations)
    return nominate(given)


def named(*spots: Spot, **more: Any) -> list[str]:
    return [each.rule for each in found(*spots, **more)]


def test_one_call_of_a_library_may_take_a_quarter_of_the_step() -> None:
    call = replace(SPOT, where=SPOT.statement, text="wrong = torch.multinomial(odds, 400)")
    call = replace(call, in_own_line=True)
    assert named(replace(call, share=0.25)) == []
    assert named(call) == ["costly_statement"]
    # Many lines of a function that it calls, none of which takes most of its time.
    assert named(replace(call, share=0.2, in_own_line=False)) == ["costly_statement"]
    assert named(replace(SPOT, share=0.2)) == ["costly_statement"]


def test_a_statement_beside_the_step_is_named_with_its_time() -> None:
    (one,) = found(SPOT)
    assert (one.rule, one.where) == ("costly_statement", "train.py:41")
    assert "3.00 of 10.00 ms a step (30%), sampled 200 times below train.py:40" in one.evidence
    assert "`table[label] += 1`" in one.evidence
    assert one.sampled_ms is not None
    cost, low, high = one.sampled_ms
    assert cost == pytest.approx(3.0) and low < cost < high
    # 200 of 667 samples: 1.96 standard errors are 3.5 points of 30.
    assert high - cost == pytest.approx(0.35, abs=0.02)


@pytest.mark.parametrize(
    "change",
    [
        {"share": 0.14},
        {"runs_layers": True},
        {"share": 0.04, "text": "gc.collect()"},
        {"library": "torch.nn.utils.clip_grad.clip_grad_norm_"},
        {"samples": 3},
        {"evaluates": True},
        {"phase": "forward"},
        {"phase": "backward"},
        {"phase": "optimizer"},
        {"phase": "data"},
    ],
)
def test_what_is_small_or_belongs_to_the_step_is_not_named(change: dict[str, Any]) -> None:
    assert named(replace(SPOT, **change)) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"library": "torch.serialization.save"}, "frequent_saving"),
        ({"library": "torch._tensor_str._str"}, "frequent_printing"),
        ({"text": 'print("loss", loss.item())'}, "frequent_printing"),
        ({"library": "logging.Logger.info"}, "frequent_printing"),
        ({"text": "gc.collect()"}, "garbage_collection_in_loop"),
        ({"library": "copy.deepcopy"}, "copied_objects"),
        ({"loop": "for p in net.parameters()", "over_parameters": True}, "loop_over_parameters"),
        ({"loop": "for i in range(n)"}, "costly_statement"),
    ],
)
def test_what_is_known_by_its_library_or_its_text_has_a_rule_of_its_own(
    change: dict[str, Any], rule: str
) -> None:
    assert named(replace(SPOT, **change)) == [rule]


LOOP = replace(SPOT, phase="forward", share=0.2, loop="for t in range(n)", loop_where="net.py:9")


def test_a_loop_over_elements_costs_its_part_of_the_backward_too() -> None:
    (one,) = found(LOOP)
    assert one.rule == "loop_over_elements"
    assert "`for t in range(n)` (net.py:9)" in one.evidence
    # Half of a forward of 4 ms, and half of a backward of 6 ms.
    assert one.sampled_ms is not None and one.sampled_ms[0] == pytest.approx(5.0)


def test_a_forward_without_a_loop_over_elements_is_not_named() -> None:
    assert named(replace(LOOP, loop="")) == []
    (penalty,) = found(replace(LOOP, over_parameters=True))
    assert penalty.rule == "loop_over_parameters"
    assert penalty.sampled_ms is not None and penalty.sampled_ms[0] == pytest.approx(5.0)
    assert named(replace(LOOP, evaluates=True)) == []


EVALUATION = replace(SPOT, evaluates=True, share=0.5)


def test_evaluation_every_few_steps_is_named_and_once_an_epoch_is_not() -> None:
    # Nine steps of an epoch of nine.
    (one,) = found(EVALUATION, evaluations=3, steps_per_epoch=9)
    assert one.rule == "frequent_evaluation"
    assert "every 3 steps, 3 times in an epoch of 9" in one.evidence
    assert "unless" not in one.by_hand
    assert named(EVALUATION, evaluations=1, steps_per_epoch=9) == []
    assert named(EVALUATION, evaluations=3, steps_per_epoch=3) == []
    # Without epochs only what comes after few steps is often.
    (one,) = found(EVALUATION, evaluations=9)
    assert one.evidence.startswith("the model is evaluated after every step: ")
    assert one.by_hand.endswith("in between, unless the training uses its result")
    given = replace(trace(), spots=(EVALUATION,), evaluations=2)
    many = replace(given, steps=[*given.steps, *given.steps])
    assert [each.rule for each in nominate(given)] == ["frequent_evaluation"]
    assert nominate(many) == []
    assert named(replace(EVALUATION, share=0.09), evaluations=3, steps_per_epoch=9) == []


SETTINGS = [
    ({"finds_anomalies": True, "anomalies_where": "a.py:3"}, "anomaly_detection", "a.py:3"),
    ({"finds_anomalies": True, "backward_where": "a.py:9"}, "anomaly_detection", "a.py:9"),
    ({"keeps_gradient_graph": True, "backward_where": "a.py:9"}, "graph_of_gradients", "a.py:9"),
    ({"in_float64": 1.0, "backward_where": "a.py:9"}, "double_precision", "a.py:9"),
    ({"threads": 1, "cores": 2, "threads_where": "a.py:4"}, "few_threads", "a.py:4"),
]


@pytest.mark.parametrize(("facts", "rule", "where"), SETTINGS)
def test_what_is_set_for_all_steps_is_tried_without_it(
    facts: dict[str, Any], rule: str, where: str
) -> None:
    (one,) = found(**facts)
    assert (one.rule, one.where) == (rule, where)
    assert one.sampled_ms is None
    assert one.bound is not None or one.remedies


@pytest.mark.parametrize(
    "facts",
    [
        {"in_float64": 0.4},
        {"threads": 2, "cores": 2, "threads_where": "a.py:4"},
        {"threads": 1, "cores": 2},
        {"threads": 0, "cores": 2, "threads_where": "a.py:4"},
    ],
)
def test_what_costs_nothing_is_not_named(facts: dict[str, Any]) -> None:
    assert found(**facts) == []


def test_gradients_that_no_optimizer_uses_are_tried_without() -> None:
    given: Trace = trace()
    optimizer = replace(given.facts.optimizers[0], left=3, left_in="Net")
    rules = {each.rule for each in found(optimizers=(optimizer,))}
    assert rules == {"unused_gradients", "parameters_without_optimizer"}


def test_workers_that_start_anew_count_as_waiting_for_data() -> None:
    loader = replace(LOADER, num_workers=2)
    start = replace(SPOT, statement=loader.where, where=loader.where, share=0.2)
    (one,) = found(start, loaders=(loader,))
    assert one.rule == "slow_data"
    assert "waits 2.00 of 10.00 ms" in one.evidence
    assert "2.00 ms of it is their start, once an epoch" in one.evidence
    assert "persistent_workers=True" in one.by_hand
    assert {"count": 2, "persistent": True} in [
        plan.techniques.get("workers") for plan in one.remedies
    ]
    assert named(start, loaders=(LOADER,)) == []
