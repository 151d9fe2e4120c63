"""A tuning's page claims what was measured, names the noise, and says what it rests on."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.lab.statistics import Ratio, Spread, figures
from hotlap.lab.verdict import Verdict
from hotlap.lab.whole_run import WholeRun
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile
from hotlap.report import jsonout, tuning
from hotlap.report.tuning_words import WITHOUT_PLAN
from hotlap.tuning.result import OUTCOMES, ProvenPlan, TrialRow, Tuning, plan_file
from tests.report.shown import words
from tests.report.test_jsonout import parsed
from tests.tuning import faked

PLAN = Plan({"resident": {}, "optimizer": {"implementation": "fused"}})
RATIO = Ratio(2.314, 2.204, 2.409, 24)
VERDICT = Verdict("rounding", "fed the same over 343 steps", 343)
NONE = Ratio(float("nan"), 0.0, float("inf"), 0)
FOUND = Tuning(
    script="train.py",
    plain="the script as it is",
    outcome="gain",
    reason="",
    plan=PLAN,
    verdict=VERDICT,
    speedup=RATIO,
    live=None,
    fresh=None,
    speedup_by_means=2.2,
    baseline_ms=Spread(4.0, 3.9, 4.1, 24),
    best_ms=Spread(1.73, 1.7, 1.8, 24),
    floor=0.034,
    whole_run={
        "baseline": WholeRun(100.0, "epochs", start_s=2.0, between_s=50.0, steps=12_000),
        "best": WholeRun(61.0, "epochs", start_s=2.5, between_s=38.5, steps=12_000),
    },
    planned_steps=12_000,
    proven_plans=(ProvenPlan("exact", Plan({"resident": {}}), Ratio(1.5, 1.4, 1.6, 24), VERDICT),),
    trials=(TrialRow(PLAN, 1, RATIO, None),),
    techniques=({"name": "resident", "state": "applied", "why": "2.00x (1.90 to 2.10)"},),
    not_tried=(),
    hints=(),
    not_reached=(),
    unprotected=(),
    seconds=60.0,
    trace=faked.trace(),
)


def without_gain(outcome: str) -> Tuning:
    nothing: dict[str, Any] = {"plan": Plan(), "speedup": NONE, "speedup_by_means": None}
    return replace(FOUND, outcome=outcome, reason="2 plans tried", proven_plans=(), **nothing)


def test_a_gain_is_told_with_its_interval_the_noise_and_its_verdict() -> None:
    text = words(tuning.page, FOUND)
    assert (
        "2.31x (2.20 to 2.41) steady: 4.00 -> 1.73 ms per step, the median of 24 paired turns. "
        "Noise floor: 3.4%." in text
    )
    # Medians of each side by itself have another ratio where the machine drifts.
    drifted = words(tuning.page, replace(FOUND, pair_ms=(6.25, 2.7)))
    assert "2.31x (2.20 to 2.41) steady: 6.25 -> 2.70 ms per step" in drifted
    assert (
        "The whole run of 12,000 steps: 100 s -> 61 s predicted (1.64x), set-up and evaluation "
        "included. Of that: start-up 2.0 -> 2.5 s, steps 48.0 -> 20.0 s, between epochs 50.0 -> "
        "38.5 s. Verdict:" in text
    )
    assert "Verdict: rounding over 343 steps, details below." in text
    assert "Verdict: rounding over 343 steps. fed the same over 343 steps." in text
    assert "exact 1.50x (1.40 to 1.60) resident" in text
    assert "resident applied 2.00x (1.90 to 2.10)" in text


def test_a_prediction_beside_other_processes_says_so() -> None:
    slowed = {**FOUND.whole_run, "baseline": WholeRun(220.0, "epochs", between_s=9.0, slowed=4.2)}
    text = words(tuning.page, replace(FOUND, whole_run=slowed))
    assert "220 s -> 61 s predicted (3.61x), set-up and evaluation included, beside other" in text
    assert "processes as busy as in the races" in text
    assert "steps take 4.2 times as long. Of that:" in text
    assert "beside other processes" not in words(tuning.page, FOUND)
    never = {**FOUND.whole_run, "baseline": WholeRun(220.0, "steps")}
    text = words(tuning.page, replace(FOUND, whole_run=never))
    assert "(3.61x), set-up included. Of that" in text


def test_a_step_of_the_whole_run_is_told_where_it_is_not_that_of_the_race() -> None:
    assert FOUND.about_whole_run.endswith("between epochs 50.0 -> 38.5 s")

    def about(**plain: float) -> str:
        runs = dict(FOUND.whole_run)
        runs["baseline"] = replace(runs["baseline"], **plain)
        found = replace(FOUND, whole_run=runs)
        assert found.to_json()["whole_run"]["about"] == found.about_whole_run
        return found.about_whole_run

    told = (
        "steps 60.0 -> 20.0 s, between epochs 50.0 -> 38.5 s. On average a step of the whole run "
    )
    told += "takes 5.00 -> 1.67 ms"
    assert about(seconds=112.0).endswith(f"{told}, the first epoch and slow steps included")
    late = about(seconds=112.0, slowdown=1.27)
    assert late.endswith("included; late plain steps take 1.3 times as long as early ones")
    busy = about(seconds=112.0, slowdown=1.27, slowed=1.25)
    assert busy.endswith(f"{told}, the first epoch and other processes included")
    fast = about(seconds=88.0, slowdown=1.27)
    assert fast.endswith(
        "3.00 -> 1.67 ms: the machine was slower in the race than when the run was watched"
    )
    # A run that stopped early took fewer steps.
    assert "On average" not in about(seconds=76.0, steps=6_000)
    assert "On average" not in about(seconds=50.0)
    assert "start-up 0.0 -> 2.5 s" in about(start_s=0.0)
    unknown = {**FOUND.whole_run, "baseline": WholeRun(None, "no loader")}
    assert replace(FOUND, whole_run=unknown).about_whole_run == ""
    assert without_gain("could_not_tell").about_whole_run == ""


def test_a_gain_whose_size_only_one_process_shows_says_so() -> None:
    live = replace(FOUND, live=FOUND.speedup, fresh=Ratio(2.08, 1.72, 2.22, 5))
    text = words(tuning.page, live)
    assert "steady, switched on and off in the watched process, the median of" in text
    said = "by their median, 2.08x (1.72 to 2.22), and do not say by how much: "
    assert f"{said}they differ too much among themselves." in text
    slow = replace(live, fresh_doubt="the machine was slower")
    assert f"{said}the machine was slower." in words(tuning.page, slow)
    assert "In fresh processes" not in text
    # Control: where fresh processes do say it, both are told.
    fresh = replace(FOUND, live=Ratio(2.5, 2.4, 2.6, 9), fresh=FOUND.speedup)
    told = "In fresh processes: 2.31x (2.20 to 2.41); switched on and off in the watched process"
    assert told in words(tuning.page, fresh)


def test_why_a_plan_was_chosen_is_told_where_another_ones_steps_are_faster() -> None:
    resident = replace(FOUND.proven_plans[0], fresh=Ratio(2.4, 2.3, 2.5, 24), worth=50.0)
    resident = replace(resident, speedup=Ratio(2.4, 2.3, 2.5, 24), live=Ratio(2.2, 2.1, 2.3, 9))
    chosen = replace(resident, plan=PLAN, speedup=RATIO, live=Ratio(2.3, 2.2, 2.4, 9), worth=55.5)
    found = replace(FOUND, proven_plans=(resident, chosen))
    text = words(tuning.page, found)
    assert "its steps and its start are expected to save 5.5 s more" in text
    assert "than those of resident; switched on and off" in text
    equal = replace(resident, worth=55.49)
    as_good = replace(found, proven_plans=(equal, chosen)).why_chosen
    assert "expected to save as much as those of resident;" in as_good
    assert "they gave 2.30x (2.20 to 2.40) and 2.20x (2.10 to 2.30)." in text
    assert found.to_json()["why_chosen"] == found.why_chosen
    slower = replace(resident, speedup=Ratio(2.0, 1.9, 2.1, 9))
    assert "was chosen" not in words(tuning.page, replace(found, proven_plans=(slower, chosen)))
    fresh = replace(found, live_decides=False)
    assert fresh.why_chosen and "switched on and off" not in fresh.why_chosen
    for change in ({"aim": "steady"}, {"planned_steps": None}):
        assert replace(found, **change).why_chosen == ""


def test_a_whole_run_of_unknown_length_is_not_predicted() -> None:
    why = "the script does not say how many steps it takes"
    unknown = {name: WholeRun(None, why) for name in ("baseline", "best")}
    text = words(tuning.page, replace(FOUND, whole_run=unknown))
    assert f"The whole run: not predicted, {why}." in text and "predicted, set-up" not in text


@pytest.mark.parametrize("outcome", sorted({*OUTCOMES} - {"gain"}))
def test_without_a_gain_no_speed_is_claimed_and_the_reason_is_given(outcome: str) -> None:
    text = words(tuning.page, without_gain(outcome))
    assert text.startswith(f"train.py {WITHOUT_PLAN[outcome]}: 2 plans tried.")
    assert "steady" not in text and "Verdict" not in text and "nan" not in text


def test_what_was_not_reached_and_not_protected_is_listed() -> None:
    text = words(tuning.page, FOUND)
    assert "Not reached" not in text and "could still have changed" not in text
    found = replace(FOUND, not_reached=("workers(count=2)",), unprotected=("a data base",))
    text = words(tuning.page, found)
    assert "Not reached within the budget: workers(count=2)" in text
    assert "Trials could still have changed: a data base" in text


def test_what_a_script_calls_itself_and_says_does_not_reach_the_terminal_raw() -> None:
    evil = "\x1b]0;evil\x07"
    rows = ({"name": "resident", "state": "refused", "why": f"ValueError: {evil}"},)
    found = replace(
        without_gain("could_not_tell"),
        script=evil,
        reason=evil,
        techniques=rows,
        unprotected=(evil,),
    )
    for every in (True, False):
        text = words(tuning.page, found, every=every)
        assert "\x1b" not in text and "\x07" not in text and "\\x1b]0;evil" in text


@pytest.mark.parametrize("found", [FOUND, without_gain("could_not_tell")], ids=["gain", "none"])
def test_the_document_is_strict_json_and_says_the_same(found: Tuning) -> None:
    data = parsed(jsonout.document(found.to_json()))
    assert data["schema"] == 1 and data["outcome"] == found.outcome
    assert data["plan"] == found.plan.techniques and data["plan_hash"] == found.plan.hash
    assert data["noise_floor"] == 0.034 and data["speedup_by_means"] == found.speedup_by_means
    assert data["speedup"]["median"] == (2.314 if found.plan else None)
    assert data["trials"][0]["plan"] == PLAN.techniques and data["trials"][0]["ms"] is None
    assert [rung["tier"] for rung in data["ladder"]] == (["exact"] if found.plan else [])


def test_the_plan_file_says_what_the_page_says() -> None:
    found = replace(FOUND, verdict=replace(VERDICT, evidence="two\nlines " + "of words " * 200))
    written = plan_file(found, MeasuredOn("this CPU", "2.13.0", 2, "NVIDIA H200"))
    again = PlanFile.from_toml(written.to_toml(), "x")
    assert again == written and again.is_as_measured
    assert str(again.speedup) == figures(RATIO)
    assert again.verdict is not None
    assert (again.verdict.tier, again.verdict.horizon_steps) == ("rounding", 343)
    evidence = again.verdict.evidence
    assert evidence.startswith("two lines of words of") and evidence.endswith(
        (" of...", " words...")
    )
    assert dict(again.notes) == {"resident": "2.00x (1.90 to 2.10)"}
    # The script's own Python may have another torch than this one.
    other = plan_file(replace(found, torch="2.12.0"), MeasuredOn("this CPU", "2.13.0")).host
    assert other is not None and other.torch == "2.12.0"
    # What gains nothing, and only makes a recipe fit, is one by hand: it is used by its name.
    nothing = plan_file(replace(without_gain("nothing_to_gain"), plan=PLAN), MeasuredOn("a", "b"))
    assert (nothing.plan, nothing.measured, nothing.host, nothing.verdict) == (PLAN, "", None, None)
