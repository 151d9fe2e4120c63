"""What is claimed of what was measured, and what is said where nothing can be."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotlap import cli
from hotlap.demo import hints_of
from hotlap.diagnosis.findings import Diagnosis, Finding, Opportunity
from hotlap.errors import TrialError
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.verdict import Verdict
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.report import tuning as report
from hotlap.techniques import Numerics
from hotlap.trace.schema import PHASES
from hotlap.tuning import concluding, predicting, stages
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.concluding import conclude
from hotlap.tuning.hints import Hint
from hotlap.tuning.result import ProvenPlan, TrialRow, Tuning
from hotlap.tuning.tuner import Tuner
from tests.tuning import faked

RESIDENT = Plan({"resident": {}})
FUSED = Plan({"optimizer": {"implementation": "fused"}})


def rung(final: Race, plan: Plan = RESIDENT) -> ProvenPlan:
    return ProvenPlan(
        "exact", plan, final.ratio(faked.name_of(plan)), Verdict("exact", "bit-equal", 99)
    )


def tried(tuner: Tuner, final: Race) -> Tuner:
    """Note the arms of a race as a tuning does."""
    tuner.floor = final.floor
    for name, arm in final.arms.items():
        if arm.plan:
            tuner.trials.append(TrialRow(arm.plan, 1, final.ratio(name), final.spread(name)))
            ((technique, options),) = arm.plan.techniques.items()
            tuner.notes.note_race(Candidate(technique, options, Numerics.EXACT), arm, final)
    return tuner


@pytest.fixture
def own_run(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How the plan's own whole run goes: the step, the set-up, and what it proves.

    Also the step of the plain run, where that is watched once more.
    """
    given: dict[str, Any] = {"step_ms": 2.6, "setup_s": 2.5, "state": "applied", "plain_ms": 4.0}

    def watch(lab: Any, plan: Plan, **options: Any) -> Observation:
        if given["state"] == "crashed":
            raise TrialError("`train.py` ended with exit code 1.\nTraceback", reason="crashed")
        ms = given["step_ms" if plan else "plain_ms"]
        trace = faked.trace(ms, setup_s=given["setup_s"])
        return Observation(trace, faked.proofs(plan, given["state"]))

    for module in (concluding, predicting):
        monkeypatch.setattr(module, "watch", watch)
    return given


def test_a_gain_that_everything_agrees_on_is_claimed(own_run: dict[str, Any]) -> None:
    final = faked.raced({RESIDENT: 1.6})
    found = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert (found.outcome, found.reason, found.plan) == ("gain", "", RESIDENT)
    assert found.speedup_by_means == pytest.approx(1.6, rel=0.01)
    before, after = (found.whole_run[name].seconds or 0.0 for name in ("baseline", "best"))
    assert 0 < after < before
    assert [row["state"] for row in found.techniques] == ["applied"]


def test_without_time_to_watch_the_plan_the_turns_in_one_process_predict_its_whole_run() -> None:
    final = faked.raced({RESIDENT: 1.6})
    found = []
    for by_means in (2.0, 1.2):
        tuner = tried(faked.tuner(4.0), final)
        tuner.trials.insert(0, TrialRow(RESIDENT, 0, Ratio(2.1, 2.0, 2.2, 30), None, "", by_means))
        found.append(conclude(tuner, faked.watched(), final, [rung(final)]).whole_run)
    (plain, fast), (_, slow) = ((each["baseline"].seconds, each["best"].seconds) for each in found)
    # As before: 2.2 s of set-up and end, and the first epoch, 50 steps of 4 ms.
    assert (fast - 2.4) * 2.0 == pytest.approx(plain - 2.4) == pytest.approx((slow - 2.4) * 1.2)
    # Where those turns were disturbed, fresh processes say it.
    tuner = tried(faked.tuner(4.0), final)
    tuner.live_decides = False
    tuner.trials.insert(0, TrialRow(RESIDENT, 0, Ratio(2.1, 2.0, 2.2, 30), None, "", 1.2))
    fresh = conclude(tuner, faked.watched(), final, [rung(final)]).whole_run["best"].seconds
    assert fresh is not None and (fresh - 2.4) * 1.6 == pytest.approx(plain - 2.4, rel=0.01)


def test_a_race_whose_plain_step_is_not_the_watched_one_proves_no_gain(
    own_run: dict[str, Any],
) -> None:
    """As where a paused trial's child keeps both cores busy while others take their turns."""
    final = faked.raced({RESIDENT: 5.94}, plain_ms=14.0)
    found = conclude(tried(faked.tuner(), final), faked.watched(4.0), final, [rung(final)])
    assert found.outcome == "could_not_tell"
    assert not found.gained
    assert found.proven_plans == ()
    assert "4.00 ms while it was watched" in found.reason
    assert "14.00 ms in the race" in found.reason
    assert found.techniques[0]["state"] == "no_effect"
    assert found.techniques[0]["why"].startswith("could not tell")
    within = faked.raced({RESIDENT: 5.94}, plain_ms=5.9)
    assert conclude(tried(faked.tuner(), within), faked.watched(4.0), within, [rung(within)]).gained


def test_a_watch_that_was_disturbed_is_repeated_before_a_race_is_doubted(
    own_run: dict[str, Any],
) -> None:
    final = faked.raced({RESIDENT: 1.6}, plain_ms=14.0)

    def outcome(plain_ms: float, seconds: float = 1000.0) -> str:
        own_run["plain_ms"] = plain_ms
        tuner = tried(faked.tuner(seconds), final)
        return conclude(tuner, faked.watched(4.0), final, [rung(final)]).outcome

    assert outcome(13.0) == "gain"
    assert outcome(4.1) == "could_not_tell"
    # Neither is there time for both watches.
    assert outcome(13.0, seconds=8.0) == "could_not_tell"


def test_a_plan_whose_whole_run_is_no_shorter_is_not_claimed(own_run: dict[str, Any]) -> None:
    final = faked.raced({RESIDENT: 1.6})
    own_run["setup_s"] = 40.0
    found = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert found.outcome == "could_not_tell"
    assert not found.gained
    before, after = (found.whole_run[name].seconds for name in ("baseline", "best"))
    assert before == after
    assert re.search(r"1\.60x .* predicted to take 4\d\.\d s and 6\.\d s without", found.reason)


@pytest.mark.parametrize(
    ("state", "words"),
    [("refused", "not in a whole run: so it says"), ("crashed", "ended with exit code 1")],
)
def test_a_plan_that_does_not_work_from_the_start_is_not_claimed(
    state: str, words: str, own_run: dict[str, Any]
) -> None:
    final = faked.raced({RESIDENT: 1.6})
    own_run["state"] = state
    found = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert found.outcome == "could_not_tell"
    assert words in found.reason


def test_a_watch_that_ends_in_the_first_epoch_does_not_deny_a_technique(
    own_run: dict[str, Any],
) -> None:
    final = faked.raced({RESIDENT: 1.6})
    own_run["state"] = "no_effect"
    found = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert found.gained
    assert found.techniques[0]["state"] == "applied"


def without_gain(final: Race | None, tuner: Tuner | None = None) -> Tuning:
    tuner = tuner or faked.tuner()
    return conclude(tried(tuner, final) if final else tuner, faked.watched(), final, [])


def test_nothing_to_gain_is_said_only_where_a_gain_was_ruled_out() -> None:
    ruled_out = without_gain(faked.raced({RESIDENT: 1.0, FUSED: 0.9}))
    assert ruled_out.outcome == "nothing_to_gain"
    assert "2 plans tried" in ruled_out.reason
    open_ = without_gain(faked.raced({RESIDENT: 1.06}, apart=0.13))
    assert open_.outcome == "could_not_tell"
    assert "1.06x" in open_.reason
    assert "17.3%" in open_.reason
    noisy = without_gain(faked.raced({RESIDENT: 0.9}, apart=0.13))
    assert noisy.outcome == "could_not_tell"
    tuner = faked.tuner()
    tuner.notes.note_untried([Candidate("workers", {"count": 1}, Numerics.EXACT)], "too short")
    partly = without_gain(faked.raced({RESIDENT: 1.0}), tuner)
    assert partly.outcome == "could_not_tell"
    assert partly.reason == "not tried (too short): workers(count=1)"
    assert partly.to_json()["not_tried"] == ["workers(count=1)"]
    tuner = faked.tuner()
    tuner.notes.note_failed_proof(FUSED, "fused", "changed", "gradient: off")
    assert without_gain(faked.raced({FUSED: 1.5}), tuner).outcome == "not_proven"
    assert without_gain(None).outcome == "nothing_to_gain"


def test_a_gain_that_a_few_long_steps_take_away_says_so() -> None:
    final = faked.raced({RESIDENT: 1.55}, stalls=[RESIDENT])
    tuner = tried(faked.tuner(), final)
    tuner.trials = [replace(row, by_means=1.03) for row in tuner.trials]
    found = conclude(tuner, faked.watched(), final, [])
    assert found.outcome == "could_not_tell"
    assert re.search(r"by the median, 1\.03x by the mean of all steps in race 1, and", found.reason)
    # A larger budget is named where time was what was missing.
    assert "--budget" not in found.reason
    tuner.budget.ask(60.0)
    assert "; use --budget" in conclude(tuner, faked.watched(), final, []).reason
    tuner.trials = [replace(row, by_means=1.6) for row in tuner.trials]
    assert "by the mean" not in conclude(tuner, faked.watched(), final, []).reason


def test_where_nothing_can_be_told_the_reason_says_who_else_was_busy() -> None:
    def reason(busy_cores: float) -> str:
        tuner = faked.tuner()
        tuner.host = replace(tuner.host, busy_cores=busy_cores)
        return without_gain(faked.raced({RESIDENT: 1.06}, apart=0.13), tuner).reason

    assert "kept 1.4 of 2 cores busy when the tuning began: tune when" in reason(1.4)
    assert "busy" not in reason(0.0)


def test_what_took_no_effect_leaves_nothing_open() -> None:
    tuner = faked.tuner()
    final = faked.raced({RESIDENT: 1.2})
    tuner.trials.append(TrialRow(RESIDENT, 1, final.ratio("resident"), None, took_effect=False))
    assert without_gain(None, tuner).outcome == "nothing_to_gain"


def shown(found: Tuning, *, every: bool = False) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    report.page(found, console, every=every)
    return " ".join(console.export_text().split())


def test_the_report_never_contradicts_the_diagnosis_before_it() -> None:
    resident = Hint(RESIDENT, 1.78, 1.7, 1.9)
    tuner = faked.tuner(hints=[resident, Hint(Plan({"replay": {}}), 3.0, 3.0, 3.0)])
    tuner.unhinted[str(Plan({"replay": {}}))] = "the technique is not among those"
    found = without_gain(faked.raced({RESIDENT: 1.3}), tuner)
    text = shown(found)
    assert "Nothing to gain" not in text
    assert (
        "resident: the diagnosis measured 1.78x, the race of this tuning in fresh processes 1.30x"
        in text
    )
    assert "the two do not agree" in text
    assert "replay: the diagnosis measured 3.00x; not raced here: the technique is not" in text
    first, second = found.to_json()["hints"]
    assert first["raced"]["median"] == pytest.approx(1.3)
    assert second["raced"] is None

    def words(speed: float, apart: float = 0.0, wobble: float = 0.002) -> str:
        again = faked.raced({RESIDENT: speed}, apart=apart, wobble=wobble)
        return shown(without_gain(again, faked.tuner(hints=[resident])))

    assert "do not agree" not in words(1.75)
    assert "do not agree" in words(1.6)
    assert "do not agree" not in words(1.6, apart=0.1)
    assert "do not agree" not in words(1.6, wobble=0.08)
    assert "do not agree" in words(2.2)


def test_what_a_diagnosis_measured_becomes_hints_the_fastest_first() -> None:
    finding = Finding(
        *("per_item_decode", "speed", 1.0, 0.8, 1.2, 2.0, "a.py:1", "", ""),
        *({"resident": {}}, "exact", "high"),
    )
    switch = Opportunity("threads", {"count": 1}, 2.0, 1.9, 2.1, "rounding")
    diagnosis = Diagnosis(
        "x", faked.trace(4.0), (), findings=(finding,), opportunities=(switch,), floor=0.02
    )
    hints = hints_of(diagnosis)
    assert [hint.plan for hint in hints] == [Plan({"threads": {"count": 1}}), RESIDENT]
    assert [hint.measured for hint in hints] == pytest.approx([2.0, 4 / 3])
    assert hints[1].low == pytest.approx(1.25 / 1.02)
    assert hints[1].high == pytest.approx(4 / 2.8 * 1.02)


def test_techniques_that_are_not_applicable_take_one_line_unless_all_are_asked_for() -> None:
    def found() -> Tuning:
        tuner = faked.tuner()
        tuner.notes.note_inapplicable({"fp8": "needs a GPU", "channels_last": "no convolution"})
        return without_gain(faked.raced({RESIDENT: 1.0}), tuner)

    text = shown(found())
    assert "2 techniques are not applicable" in text
    assert "fp8" not in text
    assert "resident not used" in text
    every = shown(found(), every=True)
    assert "fp8 refused needs a GPU" in every
    assert "not applicable" not in every
    names = {row["name"] for row in found().to_json()["techniques"]}
    assert names == {"fp8", "channels_last", "resident"}


def test_where_nothing_is_applicable_the_reasons_are_the_result() -> None:
    tuner = faked.tuner()
    tuner.notes.note_inapplicable({"fp8": "needs a GPU"})
    text = shown(without_gain(faked.raced({}), tuner))
    assert "fp8 refused needs a GPU" in text
    assert "not applicable" not in text


def test_a_technique_that_was_started_and_refused_itself_is_not_hidden() -> None:
    tuner = faked.tuner()
    final = faked.raced({RESIDENT: 1.0})
    final.arms["resident"].techniques[0]["state"] = "refused"
    assert without_gain(final, tuner).inapplicable == ()


@pytest.mark.parametrize(("gained", "code"), [(True, 0), (False, 3)])
def test_a_plan_file_is_written_only_for_a_gain(
    gained: bool,
    code: int,
    own_run: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tune(*args: Any, **options: Any) -> Tuning:
        final = faked.raced({RESIDENT: 1.6 if gained else 1.0})
        rungs = [rung(final)] if gained else []
        return conclude(tried(faked.tuner(), final), faked.watched(), final, rungs)

    monkeypatch.setattr(stages, "tune", tune)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()")
    written = tmp_path / "train.plan.toml"
    assert cli.main(["tune", "train.py", "--exit-code", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert written.exists() is gained
    assert found["plan_file"] == (str(written) if gained else None)
    assert found["plan"] == (RESIDENT.techniques if gained else {})
    if gained:
        assert PlanFile.read(written).plan == RESIDENT
        return
    written.write_text("")
    assert cli.main(["tune", "train.py"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No plan file was written" in text
    assert "from an earlier tuning, was left as it is" in text
    assert written.read_text() == ""


@pytest.mark.parametrize(
    ("typed", "use"),
    [
        (["train.py", "--name", "my run"], "train.py --name 'my run'"),
        (["--technique", "fast:FAST", "train.py"], "--technique fast:FAST train.py"),
        (["--", "train.py", "--python", "3.12"], "-- train.py --python 3.12"),
    ],
)
def test_the_line_that_uses_a_plan_starts_what_was_tuned(
    typed: list[str],
    use: str,
    own_run: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    final = faked.raced({RESIDENT: 1.6})
    found = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    monkeypatch.setattr(stages, "tune", lambda *_, **__: found)
    monkeypatch.setattr(stages, "check_request", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()")
    assert cli.main(["tune", "--json", *typed]) == 0
    assert json.loads(capsys.readouterr().out)["use"] == f"hotlap run --plan auto {use}"


def test_what_could_not_be_told_is_not_proven_to_be_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = faked.raced({RESIDENT: 1.06}, apart=0.13)
    monkeypatch.setattr(stages, "tune", lambda *_, **__: without_gain(noisy))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()")
    assert cli.main(["tune", "train.py", "--exit-code"]) == 4


def test_what_gained_in_the_watched_process_is_claimed_by_that_where_the_race_was_slow(
    own_run: dict[str, Any],
) -> None:
    """The plain step took 4 ms while it was watched, and 8 ms in the race."""
    final = faked.raced({RESIDENT: 3.0}, plain_ms=8.0)
    tuner = tried(faked.tuner(), final)
    tuner.live, tuner.live_floor = {RESIDENT: Ratio(1.6, 1.5, 1.7, 12)}, 0.01
    live = replace(rung(final), live=tuner.live[RESIDENT])
    found = conclude(tuner, faked.watched(), final, [live])
    assert found.outcome == "gain" and found.speedup.median == 1.6
    assert found.to_json()["noise_floor"] == 0.01
    # Control: without what was measured there the race alone claims nothing.
    denied = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert denied.outcome == "could_not_tell" and "2.0 times apart" in denied.reason


def test_without_time_to_watch_the_plan_its_start_and_first_epoch_are_those_of_the_plain_run() -> (
    None
):
    """1000 steps of 4 ms after 2 s; 50 of them were watched, as the first epoch."""
    final = faked.raced({RESIDENT: 2.0, FUSED: 2.0})
    seen = faked.watched()
    plain_s = 2.0 + 1000 * 0.004 + 0.2
    for plan, as_before in ((RESIDENT, 2.2 + 50 * 0.004), (FUSED, 2.2)):
        tuner = tried(faked.tuner(seconds=1.0), final)
        found = conclude(tuner, seen, final, [rung(final, plan)])
        predicted = found.whole_run["best"].seconds
        assert predicted == pytest.approx(as_before + (plain_s - as_before) / 2, rel=0.01)


def test_the_phases_of_the_plans_own_run_are_kept_beside_the_plain_ones(
    own_run: dict[str, Any],
) -> None:
    final = faked.raced({RESIDENT: 1.6})
    found = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert found.best_phases is not None and found.best_phases.keys() == {*PHASES}
    data = found.to_json()
    assert data["best_phases"] == found.best_phases
    assert data["phases"] == found.trace.steady_phases()
    # What is not claimed is not shown beside it.
    own_run["setup_s"] = 40.0
    lost = conclude(tried(faked.tuner(), final), faked.watched(), final, [rung(final)])
    assert not lost.gained and lost.to_json()["best_phases"] is None
