"""Charts put values where they belong, and say the same in shape as in colour."""

import re
from typing import Any

import pytest

from hotlap.report.page.areas import draw_areas
from hotlap.report.page.bars import draw_stacks
from hotlap.report.page.curves import Curve, draw_curves, is_drawable
from hotlap.report.page.history import MOST_POINTS, curve_of
from hotlap.report.page.intervals import Interval, draw_intervals
from hotlap.report.page.svg import Scale, legend, lines_of, tick_words, ticks
from hotlap.report.page.tuning import sections_of_tuning
from hotlap.report.page.verdict import numbers_of
from hotlap.report.page.wording import number, seconds, size
from tests.report.page import documents
from tests.report.page.parsing import read


def attributes(svg: str, tag: str, kind: str) -> list[dict[str, str]]:
    """Return the attributes of the elements of a picture that have a class."""
    found = []
    for inside in re.findall(rf"<{tag}([^>]*?)/?>", svg):
        pairs = dict(re.findall(r'([\w-]+)="([^"]*)"', inside))
        if kind in pairs.get("class", "").split():
            found.append(pairs)
    return found


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 9.7, 6, [0, 2, 4, 6, 8]),
        (0.98, 2.31, 6, [1.0, 1.5, 2.0]),
        (1, 3, 7, [1, 1.5, 2, 2.5, 3]),
        (-2e-5, 3e-5, 6, [-2e-5, -1e-5, 0, 1e-5, 2e-5, 3e-5]),
        (5, 5, 6, [5]),
        (0, float("inf"), 6, [0]),
    ],
)
def test_ticks_are_round_numbers_in_the_range(
    low: float, high: float, most: int, expected: list[float]
) -> None:
    assert ticks(low, high, most) == pytest.approx(expected)


def test_figures_are_short_and_none_is_not_a_number() -> None:
    assert [number(each) for each in (12, 12_345, 0.12345, 1e-5, None, float("nan"), True)] == [
        *("12", "12,345", "0.1235", "1e-05", "not known", "not known", "yes")
    ]
    assert [tick_words(each) for each in (12_000, 9_000, 2e6, 0.25)] == [
        "12k",
        "9000",
        "2M",
        "0.25",
    ]
    assert [size(each) for each in (512, 3 * 2**20, 5 * 2**30)] == [
        *("512 bytes", "3.0 MiB", "5.0 GiB")
    ]
    assert [seconds(each) for each in (1.25, 125, 3725)] == [
        *("1.2 s", "2 min 05 s", "1 h 02 min 05 s")
    ]


def test_bars_are_as_long_as_their_values_and_stand_at_the_same_place() -> None:
    svg = draw_stacks([("a", {"x": 6.0, "y": 2.0}), ("b", {"y": 4.0})], 400, "ms", "title")
    bars = [bar for bar in attributes(svg, "rect", "edge") if bar["height"] == "30"]
    widths = [float(bar["width"]) for bar in bars]
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.01)
    assert widths[2] / widths[1] == pytest.approx(2, rel=0.01)
    # The same part has the same colour and hatching in both bars.
    assert [bar["class"] for bar in bars] == ["c0 edge", "c1 edge", "c1 edge"]
    assert float(bars[0]["x"]) == float(bars[2]["x"])
    assert svg.count("url(#up)") == 3


def test_an_interval_stands_between_its_ends_and_has_a_shape_for_what_it_says() -> None:
    rows = [
        Interval("a", 2.0, 1.8, 2.2, "2.00x", True),
        Interval("b", 1.02, 0.9, 1.1, "1.02x", False),
    ]
    svg = draw_intervals(rows, 400, "times", "title", zero=1.0, noise=0.05)
    points = attributes(svg, "circle", "c0")
    # One of each is in the legend.
    assert len(points) == 2 and len(attributes(svg, "rect", "hollow")) == 2
    lines = attributes(svg, "line", "whisker")
    first = next(line for line in lines if line["y1"] == line["y2"])
    assert float(first["x1"]) < float(points[1]["cx"]) < float(first["x2"])
    assert (float(first["x1"]) + float(first["x2"])) / 2 == pytest.approx(
        float(points[1]["cx"]), abs=0.2
    )
    assert len(attributes(svg, "rect", "noise")) == 2


def test_without_a_known_noise_no_band_is_drawn() -> None:
    svg = draw_intervals([Interval("a", 2.0, 1.8, 2.2, "2", True)], 400, "ms", "title")
    assert not attributes(svg, "rect", "noise")


@pytest.mark.parametrize(("low", "is_above"), [(1.05, True), (1.03, False)])
def test_a_gain_is_marked_as_one_only_above_the_noise(low: float, is_above: bool) -> None:
    document: dict[str, Any] = documents.tuning()
    for ratio in (document["speedup"], document["speedup_live"], document["speedup_fresh"]):
        ratio["low"] = low
    section = next(s for s in sections_of_tuning(document) if s.title == "Why to believe it")
    svg = section.blocks[0].wide  # pyright: ignore[reportAttributeAccessIssue]
    filled, hollow = (
        len(attributes(svg, *each)) for each in (("circle", "c0"), ("rect", "hollow"))
    )
    assert (filled, hollow) == ((3, 1) if is_above else (1, 3))


def test_a_curve_has_gaps_where_there_is_no_number() -> None:
    curve = Curve("a", [1, 2, 3, 4, 5], [1.0, 2.0, None, float("nan"), 5.0])
    svg = draw_curves([curve, Curve("b", [1, 5], [0.0, 1.0])], 400, "step", "loss", "title")
    lines = attributes(svg, "polyline", "curve")
    assert [len(line["points"].split()) for line in lines] == [2, 2]
    # Told apart without colour: by dashes and by marks.
    assert "stroke-dasharray" not in lines[0] and lines[1]["stroke-dasharray"]
    assert len(attributes(svg, "circle", "c0")) == 4 and len(attributes(svg, "rect", "c1")) == 3
    assert not is_drawable(Curve("a", [1, 2], [None, None]))


def test_a_band_is_around_its_curve_and_named() -> None:
    curve = Curve("a", [1, 2], [1.0, 2.0], [0.5, 1.5], [1.5, None], "the noise")
    svg = draw_curves([curve], 400, "step", "loss", "title")
    assert len(attributes(svg, "polygon", "band")[0]["points"].split()) == 2
    assert "the noise" in read(f"<html>{svg}</html>").text


def test_areas_lie_on_each_other() -> None:
    svg = draw_areas([0, 1], {"a": [1.0, 1.0], "b": [3.0, 3.0]}, 400, "step", "ms", "title")
    heights = []
    for area in attributes(svg, "polygon", "c0") + attributes(svg, "polygon", "c1"):
        ys = [float(point.split(",")[1]) for point in area["points"].split()]
        heights.append((min(ys), max(ys)))
    (top_a, bottom_a), (top_b, bottom_b) = heights
    assert bottom_b == top_a and (bottom_b - top_b) / (bottom_a - top_a) == pytest.approx(
        3, rel=0.01
    )


def test_long_names_are_wrapped_and_legends_have_rows() -> None:
    assert max(map(len, lines_of("a " * 200, 330))) * 7 < 330
    assert len(lines_of("x" * 300, 330)) > 1
    marks, height = legend([("<g/>", "name " * 5)] * 6, 330, 0)
    assert height > 100 and len(marks) == 12


def test_what_lies_outside_a_scale_is_at_its_edge() -> None:
    scale = Scale(0, 10, 100, 200)
    assert [scale.at(value) for value in (-5, 5, 50)] == [100, 150, 200]


def test_a_long_curve_is_thinned_with_a_band_from_its_lowest_to_its_highest() -> None:
    count = 10 * MOST_POINTS
    found = {
        "steps": [*range(count)],
        "times_s": [*range(count)],
        "values": [0.0, 10.0] * (count // 2),
    }
    curve = curve_of(found, "loss")
    assert len(curve.xs) == MOST_POINTS and curve.xs[-1] == count - 1
    assert set(curve.ys) == {5.0} and set(curve.low) == {0.0} and set(curve.high) == {10.0}
    few = curve_of({"steps": [1, 2], "values": [1.0, None]}, "loss")
    assert (few.ys, few.band) == ([1.0, None], "")


def test_the_numbers_of_curves_are_in_a_table() -> None:
    table = numbers_of([Curve("a", [1, 2], [0.5, None]), Curve("b", [2, 3], [1.5, 2.5])], "step")
    assert table.head == ("step", "a", "b")
    assert table.rows == [("1", "0.5", ""), ("2", "", "1.5"), ("3", "", "2.5")]
