"""What autocast does to memory and time, both ways, by trial."""

import runpy
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.diagnosis.autocast import AutocastEffect
from hotlap.errors import TrialError
from hotlap.lab.autocast import TURN, compare_turns
from hotlap.plan import Plan
from hotlap.report.autocast import autocast_line
from hotlap.trace.memory_schema import KINDS, Peak
from hotlap.trace.schema import PHASES
from tests.diagnosis.memory_runs import BATCH, diagnosed, recipe, script

TEXTS = {
    "a script without autocast": (script(autocast=False), False),
    "a script with autocast": (script(autocast=True), True),
    "a recipe without autocast": (recipe(), False),
    "a recipe with autocast in its loss": (recipe(autocast=True), True),
}


def check_halves(autocast: dict[str, Any]) -> None:
    """Check that activations take about half under autocast, and that the phases were timed."""
    without, under = autocast["without"], autocast["with"]
    activations = [way["by_kind"]["activations"] for way in (without, under)]
    # What every tanh gives is then kept in 16 bits, and so is a copy of every weight.
    assert 0.45 < activations[1] / activations[0] < 0.65
    assert under["peak_bytes"] < 0.8 * without["peak_bytes"]
    for way in (without, under):
        assert set(way["ms"]) == {"forward", "backward", "optimizer", "step"}
        assert all(0 < each["low"] <= each["median"] <= each["high"] for each in way["ms"].values())
        assert way["ms"]["step"]["n"] >= 2
    assert autocast["why_not"] == autocast["why_not_timed"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_activations_are_halved_whichever_way_it_is_switched(name: str, tmp_path: Path) -> None:
    text, is_used = TEXTS[name]
    found = diagnosed(tmp_path, text)
    autocast = found["memory"]["autocast"]
    assert (autocast["used"], autocast["format"]) == (is_used, "bfloat16")
    check_halves(autocast)
    # The report itself is of the run as it is.
    as_it_is = autocast["with" if is_used else "without"]
    assert as_it_is["peak_bytes"] == found["memory"]["peak_bytes"]


@pytest.mark.slow
def test_autocast_of_a_plan_is_taken_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(recipe())
    task = runpy.run_path(str(tmp_path / "recipe.py"))["task"]
    plan = Plan({"autocast": {"dtype": "bf16"}})
    found = hotlap.diagnose_memory(task, arguments={"batch_size": BATCH}, plan=plan)
    assert found.is_recipe
    assert found.autocast is not None
    assert found.autocast.change == "off"
    assert found.autocast.as_it_is is not None and found.autocast.switched is not None
    assert found.autocast.as_it_is.bytes < 0.8 * found.autocast.switched.bytes


@pytest.mark.slow
def test_one_region_around_the_whole_loop_is_switched_too(tmp_path: Path) -> None:
    text = script(autocast=False).replace(
        "for epoch", 'torch.autocast("cpu").__enter__()\nfor epoch'
    )
    text = text.replace('torch.autocast("cpu", enabled=False)', "torch.enable_grad()")
    autocast = diagnosed(tmp_path, text)["memory"]["autocast"]
    assert autocast["used"]
    check_halves(autocast)


@pytest.mark.slow
def test_where_nothing_is_multiplied_it_is_said_in_one_line(tmp_path: Path) -> None:
    text = script(autocast=False).replace("nn.Linear(64, 64)", "nn.LayerNorm(64)")
    text = text.replace("nn.Linear(64, 1)", "nn.Softmax(dim=1)").replace("4096, 1)", "4096, 64)")
    autocast = diagnosed(tmp_path, text)["memory"]["autocast"]
    assert "would change nothing" in autocast["why_not"]
    assert autocast["with"] is None


@pytest.mark.slow
def test_a_script_that_fails_under_autocast_is_reported_all_the_same(tmp_path: Path) -> None:
    text = script(autocast=False).replace("        loss.backward()", "{}        loss.backward()")
    text = text.format("        model(inputs).detach().numpy()\n")
    found = diagnosed(tmp_path, text)
    assert found["memory"]["peak_bytes"] > 0
    assert "the trial failed: TypeError" in found["memory"]["autocast"]["why_not"]


@pytest.mark.slow
def test_a_budget_that_is_used_up_leaves_autocast_out(tmp_path: Path) -> None:
    autocast = diagnosed(tmp_path, script(autocast=False), budget="2s")["memory"]["autocast"]
    assert "use --budget" in autocast["why_not"]


def rows(turns: int, *, base_ms: float, other_ms: float, first_ms: float) -> list[list[float]]:
    """Return steps in turns, whose first and last are as slow as `first_ms`."""
    found = []
    for turn in range(turns):
        ms = (base_ms, other_ms)[turn % 2] if turn > 1 else first_ms
        found += [[first_ms, *[ms] * (TURN - 2), first_ms]]
    return [[ms / len(PHASES)] * len(PHASES) for row in found for ms in row]


def test_turns_are_compared_without_their_ends_and_the_first_two() -> None:
    times = compare_turns(rows(8, base_ms=10, other_ms=5, first_ms=1000))
    step = times["step"]
    assert step.as_it_is.median == pytest.approx(10)
    assert step.switched.median == pytest.approx(5)
    assert step.ratio.median == pytest.approx(2)
    assert (step.as_it_is.n, step.ratio.pairs) == (3, 3)


def test_too_few_turns_are_no_times() -> None:
    with pytest.raises(TrialError, match="29 steps"):
        compare_turns(rows(6, base_ms=10, other_ms=5, first_ms=10)[:-1])
    assert compare_turns(rows(6, base_ms=10, other_ms=5, first_ms=10))


def peak(count: int) -> Peak:
    return Peak(count, 0, 1, "forward", {**dict.fromkeys(KINDS, 0), "activations": count}, ())


def test_pairs_are_said_as_it_is_first_and_kept_by_what_they_are() -> None:
    times = compare_turns(rows(8, base_ms=10, other_ms=5, first_ms=10))
    off = AutocastEffect("off", "bfloat16", peak(2**20), peak(2**21), times)
    line = autocast_line(off)
    assert "is used. With it switched off" in line
    assert "peak 1.0 MiB -> 2.0 MiB" in line
    assert "update 2.00 -> 1.00 ms, 2.00x" in line
    assert "3 turns each way" in line
    assert "is faster here" in line
    data = off.to_json()
    assert (data["with"]["peak_bytes"], data["without"]["peak_bytes"]) == (2**20, 2**21)
    assert data["with"]["ms"]["step"].median == pytest.approx(10)
    on = AutocastEffect("on", "bfloat16", peak(2**20), peak(2**21))
    assert on.to_json()["without"]["peak_bytes"] == 2**20


def test_what_was_not_compared_is_said_with_its_reason() -> None:
    line = autocast_line(AutocastEffect("on", "bfloat16", why_not="refused: no layer"))
    assert line.count("\n") == 0
    assert "was not compared: refused: no layer." in line
    untimed = AutocastEffect("on", "bfloat16", peak(1), peak(2), why_not_timed="no time")
    assert "was not timed: no time." in autocast_line(untimed)
