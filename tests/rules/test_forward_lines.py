"""Rules that read the text of sampled lines: what belongs together, what it costs, what is none."""

from typing import Any

import pytest

from hotlap.rules import Nomination, nominate
from hotlap.task.facts import PaddingFacts
from hotlap.trace.schema import HotLine
from tests.rules.test_rules import trace

STEP_MS = 10.0
"""Of forward and backward; the traces here have nothing else."""


def line(number: int, text: str, share: float = 0.2, **more: Any) -> HotLine:
    samples = round(500 * share)
    return HotLine("forward", f"train.py:{number}", share, text, **{"samples": samples, **more})


def found(*lines: HotLine) -> list[Nomination]:
    return nominate(trace(lines=lines))


ONE_HOT = line(20, "items = F.one_hot(history, PRODUCTS).float()", 0.3)
PRODUCT = line(21, "x = self.product(items).flatten(1)", 0.4)


def test_one_hot_vectors_cost_their_making_and_the_lines_that_use_them() -> None:
    (one,) = found(ONE_HOT, PRODUCT, line(22, "return self.out(x)", 0.3))
    assert (one.rule, one.where) == ("one_hot_products", "train.py:21")
    assert one.sampled_ms is not None
    cost, low, high = one.sampled_ms
    assert cost == pytest.approx(0.7 * STEP_MS) and low < cost < high
    assert "7.00 of 10.00 ms a step" in one.evidence
    assert "sampled 350 times below train.py:20, train.py:21" in one.evidence


@pytest.mark.parametrize(
    "lines",
    [
        # As much as nothing, too few samples, another variable, another file, and far away.
        (line(20, ONE_HOT.text, 0.01),),
        (line(20, ONE_HOT.text, 0.3, samples=5),),
        (line(20, "count = one_hot_count(x)", 0.3),),
    ],
)
def test_what_costs_little_or_is_none_is_not_named(lines: tuple[HotLine, ...]) -> None:
    assert found(*lines) == []


def test_lines_far_away_and_other_variables_do_not_count() -> None:
    other = line(21, "x = self.product(items_of_others)", 0.3)
    far = line(60, PRODUCT.text, 0.3)
    (one,) = found(ONE_HOT, other, far)
    assert one.where == "train.py:20" and one.at_most_ms == pytest.approx(0.3 * STEP_MS)


SCORES = line(30, "scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)", 0.3)
MASKED = line(31, "scores = scores.masked_fill(mask, -1e9)", 0.05)
SOFTMAX = line(32, "weights = torch.softmax(scores, dim=-1)", 0.25)
MIXED = line(33, "mixed = weights @ v", 0.2)


def test_attention_costs_what_lies_between_its_products() -> None:
    (one,) = found(SCORES, MASKED, SOFTMAX, MIXED)
    assert (one.rule, one.where) == ("attention_by_hand", "train.py:30")
    assert one.sampled_ms is not None
    assert one.sampled_ms[0] == pytest.approx((0.05 + 0.25) * STEP_MS)
    assert one.at_most_ms == pytest.approx(0.8 * STEP_MS)
    assert "scaled_dot_product_attention" in one.by_hand


def test_a_softmax_that_is_a_method_is_one() -> None:
    method = line(32, "weights = scores.softmax(dim=-1)", 0.25)
    (one,) = found(SCORES, method, MIXED)
    assert one.at_most_ms == pytest.approx(0.75 * STEP_MS)
    text = "weights = scores.masked_fill(mask[:, :n], float('-inf')).softmax(-1)"
    (one,) = found(SCORES, line(32, text, 0.25), MIXED)
    assert one.at_most_ms == pytest.approx(0.75 * STEP_MS)


def test_of_attention_in_one_line_half_is_taken_to_be_saved() -> None:
    (one,) = found(line(30, "x = ((q @ k.mT) * s).softmax(-1) @ v", 0.5))
    assert one.sampled_ms is not None and one.sampled_ms[0] == pytest.approx(0.25 * STEP_MS)


@pytest.mark.parametrize(
    "lines",
    [
        (SOFTMAX,),
        (SCORES, SOFTMAX),
        (SOFTMAX, MIXED),
        (line(30, "scores = self.layer(x)", 0.3), SOFTMAX, line(33, "y = weights.sum()", 0.3)),
        (SCORES, line(32, "weights = F.log_softmax(scores, -1)", 0.3), MIXED),
    ],
)
def test_a_softmax_that_belongs_to_no_attention_is_not_named(lines: tuple[HotLine, ...]) -> None:
    assert found(*lines) == []


PADDING = PaddingFacts("batch[0]", "train.py:70", 0.6, 0.5, 72.0, "pad to the longest")


def test_padded_batches_are_tried_without_their_padding() -> None:
    (one,) = nominate(trace(padding=PADDING))
    assert (one.rule, one.where, one.by_hand) == (
        "padded_batches",
        "train.py:70",
        "pad to the longest",
    )
    assert one.bound is not None and list(one.bound.techniques) == ["cut_batches"]
    assert one.at_most_ms == pytest.approx(0.6 * STEP_MS)


@pytest.mark.parametrize(("share", "avoidable"), [(0.1, 0.1), (0.3, 0.05)])
def test_a_little_padding_is_not_named(share: float, avoidable: float) -> None:
    padding = PaddingFacts("batch[0]", "train.py:70", share, avoidable, 72.0, "")
    assert nominate(trace(padding=padding)) == []
