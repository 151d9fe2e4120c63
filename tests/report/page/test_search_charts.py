"""A parameter's importance is told beside what chance gives; a trial is a line through its axes."""

import random

import pytest

from hotlap.report.page.importance import LEAST_TRIALS, importances
from hotlap.report.page.parallel import Axis, draw_parallel
from hotlap.report.page.search import page_of_search
from tests.report.page import documents
from tests.report.page.test_charts import attributes

WORDS = {"best": "the best", "good": "better", "other": "others"}


def found(
    values: list[float], parameters: list[dict[str, object]]
) -> dict[str, tuple[float, float]]:
    return {each.name: (each.share, each.chance) for each in importances(parameters, values)}


def test_a_parameter_with_its_best_value_in_the_middle_is_important() -> None:
    """A correlation would call it useless."""
    rates = [k / 24 for k in range(24)]
    values = [(rate - 0.5) ** 2 for rate in rates]
    drawn = random.Random(1)
    parameters = [{"lr": rate, "seed": drawn.random()} for rate in rates]
    shares = found(values, parameters)
    assert list(shares) == ["lr", "seed"]
    assert shares["lr"][0] > 0.5 > shares["lr"][1]
    assert shares["seed"][0] < shares["seed"][1]


def test_a_parameter_without_effect_is_below_chance_in_about_19_of_20_cases() -> None:
    drawn, above = random.Random(2), 0
    for _ in range(40):
        values = [drawn.random() for _ in range(16)]
        parameters = [{"a": drawn.choice("xyz")} for _ in values]
        share, chance = found(values, parameters).get("a", (0.0, 1.0))
        above += share > chance
    assert above <= 6


def test_what_cannot_be_told_is_not_told() -> None:
    few = LEAST_TRIALS - 1
    assert importances([{"a": k} for k in range(few)], [float(k) for k in range(few)]) == []
    # One value only explains nothing.
    assert importances([{"a": 1}] * 10, [float(k) for k in range(10)]) == []
    assert found([1.0] * 10, [{"a": k % 2} for k in range(10)])["a"][0] == 0.0


def test_trials_without_a_value_are_one_group_beside_the_thirds_of_the_others() -> None:
    values = [float(k) for k in range(12)]
    parameters: list[dict[str, object]] = [{"clip": None if k < 3 else k / 10} for k in range(12)]
    share, chance = found(values, parameters)["clip"]
    # Groups of one trial each would explain everything, by chance too.
    assert chance < 0.8 and chance < share < 0.98


def test_the_same_document_gives_the_same_importance() -> None:
    assert page_of_search(documents.search()) == page_of_search(documents.search())


@pytest.mark.parametrize(
    ("axis", "shares"),
    [
        (Axis("lr", [1e-4, 1e-2, 1e-3], is_log=True), [0, 1, 0.5]),
        (Axis("width", [64, 128, 96]), [0, 1, 0.5]),
        (Axis("width", [128, 64, 1024], is_choice=True), [0.5, 0, 1]),
        (Axis("model", ["cnn", "mlp", "vit"]), [0, 0.5, 1]),
        (Axis("augment", [True, False, None]), [1, 0, None]),
        # A logarithm of 0 there is none.
        (Axis("decay", [0.0, 1.0, 0.5], is_log=True), [0, 1, 0.5]),
        (Axis("same", [3, 3, 3]), [0.5, 0.5, 0.5]),
    ],
)
def test_an_axis_spreads_its_values(axis: Axis, shares: list[float | None]) -> None:
    assert axis.shares() == pytest.approx(shares)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place, _ in axis.labels())


def test_each_trial_is_a_line_and_the_best_one_has_marks() -> None:
    axes = [Axis("lr", [1.0, 2.0, 3.0]), Axis("loss", [0.3, 0.1, 0.2])]
    svg = draw_parallel(axes, [False, True, False], 1, 330, "title", WORDS)
    assert len(attributes(svg, "polyline", "curve")) == 1
    others = attributes(svg, "polyline", "faint")
    assert len(others) == 2 and all(line["stroke-dasharray"] for line in others)
    # One mark of the best is in the legend.
    assert len(attributes(svg, "rect", "c1")) == 3
