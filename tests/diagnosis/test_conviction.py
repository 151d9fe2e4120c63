"""What a race says of a suspicion, and what a page says where there was none."""

import io
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from hotlap.attach.entry import Script
from hotlap.demo import hints_of
from hotlap.diagnosis import live_trials
from hotlap.diagnosis.causes import _needs, _reserve_s, _Subject
from hotlap.diagnosis.conviction import (
    conclude,
    still_wanted,
    trials_of_race,
)
from hotlap.diagnosis.findings import Diagnosis
from hotlap.diagnosis.live_trials import SHARE
from hotlap.diagnosis.time_plan import Clock, RaceTime
from hotlap.diagnosis.tried import Trials, Tried
from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.report.diagnosis import page
from hotlap.rules import few_threads, nominate
from hotlap.rules.slow_optimizer import FREE_STEP
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.trace.schema import Anchor, HotLine, Trace

LOADER = LoaderFacts("d", 100, 10, 0, True, True, True, "a.py:3", "a.py:9", 10)
SPARSE = OptimizerFacts("torch.optim.sparse_adam.SparseAdam", "default", 1, 99, "a.py:5", True)
LINES = (HotLine("data", "a.py:11", 0.7), HotLine("other", "a.py:20", 1.0))
APPLIED = [{"name": "x", "state": "applied", "why": ""}]


def trace_of(data: float, optimizer: float, other: float = 0.6, **facts: object) -> Trace:
    rows = [(data, 1.0, 1.0, optimizer, other)] * 20
    known = TaskFacts(loaders=(LOADER,), **facts)  # pyright: ignore[reportArgumentType]
    return Trace(rows, (0,), known, Anchor("optimizer.step", "high", {}), 1.0, lines=LINES)


def known(trace: Trace) -> Diagnosis:
    return Diagnosis("train.py", trace, ())


def trials(plain_ms: float, again_ms: float | None = None, **arms_ms: float | str) -> Trials:
    """Return a race of 10 rounds without noise; a text is why an arm failed."""
    lab = Lab(Script(path="train.py"))
    plans = {
        "resident": Plan({"resident": {}}),
        "workers": Plan({"workers": {"count": 2}}),
        "queued": Plan({"workers": {"count": 2, "prefetch": 8}}),
        "replay": Plan({"replay": {}}),
        "free_step": FREE_STEP,
    }
    arms = {}
    for name, ms in arms_ms.items():
        arm = Arm(str(plans[name]), plans[name], lab, techniques=APPLIED)
        if isinstance(ms, str):
            arm.failed = ms
        else:
            arm.turns_ms = [ms] * 10
            arm.means_ms = [ms] * 10  # pyright: ignore[reportAttributeAccessIssue]
        arms[arm.name] = arm
    twins = {}
    for name, ms in (("plain", plain_ms), ("plain again", again_ms or plain_ms)):
        twins[name] = Arm(name, Plan({}), lab, [ms] * 10)
        twins[name].means_ms = [ms] * 10  # pyright: ignore[reportAttributeAccessIssue]
    alive = {name: arm for name, arm in arms.items() if arm.failed is None}
    return trials_of_race(Race({**twins, **alive}, tuple(twins), 10, 20), list(arms.values()))


def printed(diagnosis: Diagnosis) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    page(diagnosis, console)
    return console.export_text()


def test_a_cause_that_no_technique_removes_is_a_finding_with_what_the_bound_measured() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    refused = trials(15.0, resident="the data set draws numbers", workers=15.5, replay=3.0)
    found = conclude(known(trace), nominate(trace), (), refused)
    (finding,) = found.findings
    assert (finding.rule, finding.where) == ("per_item_decode", "a.py:11")
    assert finding.cost_ms == finding.at_most_ms == pytest.approx(12.0)
    assert finding.plan == {} and finding.numerics != "exact"
    assert "the data set draws numbers" in finding.remedy and "cheaper" in finding.remedy
    assert "5.00x as fast" in finding.evidence
    assert found.ruled_out == ()


def test_a_remedy_that_works_goes_before_its_bound() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    (finding,) = conclude(
        known(trace), nominate(trace), (), trials(15.0, resident=5.0, workers=9.0, replay=3.0)
    ).findings
    assert finding.plan == {"resident": {}}
    assert finding.cost_ms == pytest.approx(10.0) and finding.at_most_ms == pytest.approx(12.0)


def test_a_cost_is_that_of_a_step_without_evaluation() -> None:
    # Steps of 10 ms, and 1 s of evaluation after each 100 of them.
    rows = [(5.0, 1.0, 1.0, 0.2, 2.8 + (1000.0 if i % 100 == 0 else 0.0)) for i in range(201)]
    trace = replace(trace_of(5.0, 0.2), steps=rows, epoch_starts=(0, 100, 200))
    assert trace.step_ms()["mean"] == pytest.approx(20.0)
    switch = Plan({"workers": {"count": 2}})
    raced = trials(10.0, resident=5.0, workers=8.0)
    found = conclude(known(trace), nominate(trace), (switch,), raced)
    (finding,) = found.findings
    assert (finding.cost_ms, finding.at_most_ms) == pytest.approx((5.0, 5.0))
    assert found.opportunities[0].saves_ms == pytest.approx(2.0)
    bound = conclude(known(trace), nominate(trace), (), trials(10.0, replay=4.0))
    assert bound.findings[0].cost_ms == pytest.approx(6.0)
    (hint,) = hints_of(replace(found, opportunities=()))
    assert hint.measured == pytest.approx(2.0)


def test_an_opportunity_whose_interval_holds_no_gain_is_not_told() -> None:
    switch, trace = Plan({"workers": {"count": 2}}), trace_of(5.0, 0.2)
    for low, told in ((0.99, 0), (1.01, 1)):
        tried = Tried(switch, Ratio(1.3, low, 1.5, 10), "workers gave 1.30x", is_gain=True)
        found = conclude(known(trace), (), (switch,), Trials({str(switch): tried}, 0.01))
        assert len(found.opportunities) == told
        # That it was tried is told in either case.
        assert found.without_gain == (() if told else ("workers gave 1.30x",))
        assert ("Tried, no gain found: workers gave 1.30x." in printed(found)) == (not told)
    apart = replace(tried, is_gain=False, floor=0.4)
    found = conclude(known(trace), (), (switch,), Trials({str(switch): apart}, 0.4))
    assert found.without_gain == ("workers gave 1.30x, and identical runs differ by up to 40.0%",)


@pytest.mark.parametrize(("low", "told"), [(0.9, False), (1.01, True)])
def test_how_far_identical_runs_differ_is_said_where_an_interval_alone_would_decide(
    low: float, told: bool
) -> None:
    plan, trace = Plan({"resident": {}}), trace_of(12.0, 0.2, 0.8)
    tried = Tried(plan, Ratio(1.2, low, 1.5, 10), "resident gave 1.20x", is_open=True, floor=0.05)
    found = conclude(known(trace), nominate(trace), (), Trials({str(plan): tried}, 0.05))
    text = printed(found)
    assert "Undecided: resident gave 1.20x" in text
    assert ("identical runs differ by up to 5.0%" in text) is told


def test_an_opportunity_says_what_does_the_same_in_a_script() -> None:
    trace, ratio = trace_of(5.0, 0.2), Ratio(1.3, 1.2, 1.5, 10)
    for switch, said in (
        (Plan({"threads": {"count": 2}}), "call torch.set_num_threads(2) before training"),
        (Plan({"host_allocator": {}}), "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647"),
        (Plan({"workers": {"count": 2}}), ""),
    ):
        tried = Tried(switch, ratio, "", is_gain=True)
        found = conclude(known(trace), (), (switch,), Trials({str(switch): tried}, 0.01))
        assert said in found.opportunities[0].remedy
        assert bool(found.opportunities[0].remedy) == bool(said)
        assert found.opportunities[0].remedy in printed(found)


def test_a_saving_does_not_raise_what_the_trace_allows() -> None:
    trace = trace_of(3.0, 0.2, 4.8)
    (finding,) = conclude(known(trace), nominate(trace), (), trials(10.0, resident=5.0)).findings
    assert (finding.cost_ms, finding.at_most_ms) == pytest.approx((5.0, 3.0))


def test_a_bound_that_gains_nothing_rules_out() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    found = conclude(known(trace), nominate(trace), (), trials(15.0, workers=15.0, replay=15.0))
    assert found.findings == () and len(found.ruled_out) == 1
    assert "identical runs differ" in printed(found)
    assert "with one batch served again and again, a step is 1.00x as fast" in found.ruled_out[0]


def test_a_gain_that_only_its_interval_shows_says_why_it_is_not_claimed() -> None:
    plan, trace = Plan({"resident": {}}), trace_of(12.0, 0.2, 0.8)
    tried = Tried(plan, Ratio(1.2, 1.1, 1.3, 9), "resident gave 1.20x", is_open=True, floor=0.01)
    for why, said in (
        ("the same plan differed from itself",) * 2,
        ("", "9 turns are too few to be sure"),
    ):
        one = Trials({str(plan): replace(tried, why=why)}, 0.01)
        (suspect,) = conclude(known(trace), nominate(trace), (), one).suspects
        assert f"resident gave 1.20x, but {said}" in suspect.why
        assert said in conclude(known(trace), (), (plan,), one).without_gain[0]
    # Where fresh processes were raced, the mean of all steps has a veto.
    slow = trials(15.0, resident=5.0)
    assert "but" not in slow.tried["resident"].words


def test_what_noise_hides_is_not_called_free_of_cost() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    noisy = trials(10.0, again_ms=22.0, workers=15.0, replay=9.0)
    assert noisy.floor > 0.8
    found = conclude(known(trace), nominate(trace), (), noisy)
    assert found.findings == () == found.ruled_out
    assert "Undecided: " in found.suspects[0].why
    assert "Checked, no gain by itself" not in printed(found)


def test_of_a_suspect_no_remedy_is_advised_that_was_refused() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    noisy = trials(10.0, again_ms=22.0, workers="the data set draws", resident=9.5, replay=9.0)
    (suspect,) = conclude(known(trace), nominate(trace), (), noisy).suspects
    assert suspect.remedy.startswith("resident, if that gains. In the script: decode")
    assert "num_workers" not in suspect.remedy and "the data set draws" in suspect.why


def test_what_the_budget_did_not_reach_is_not_called_impossible_to_measure() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    (suspect,) = conclude(known(trace), nominate(trace), (), trials(15.0)).suspects
    assert "--budget" in suspect.why


def test_a_bound_that_was_refused_says_why_instead_of_asking_for_a_larger_budget() -> None:
    trace = trace_of(0.1, 0.3, threads=1, cores=2, threads_where="a.py:4")
    (nomination,) = few_threads.nominate(trace)
    # On ranks torchrun asks for one thread each, and the remedy would leave one.
    assert few_threads.nominate(replace(trace, facts=replace(trace.facts, ranks=4))) == []
    tried = Tried(Plan({"all_cores": {}}), None, "all_cores: refused, on ranks")
    assert nomination.bound == tried.plan
    made = Trials({str(tried.plan): tried}, 0.01)
    (suspect,) = conclude(known(trace), [nomination], (), made).suspects
    assert "refused, on ranks" in suspect.why and "--budget" not in suspect.why


def test_an_optimizer_with_sparse_gradients_is_measured_by_one_that_does_nothing() -> None:
    trace = trace_of(0.1, 9.3, optimizers=(SPARSE,))
    (nomination,) = nominate(trace)
    assert nomination.remedies == () and nomination.bound == FREE_STEP
    (finding,) = conclude(known(trace), [nomination], (), trials(12.0, free_step=2.0)).findings
    assert finding.cost_ms == pytest.approx(10.0)
    assert "sparse" in finding.evidence and "sparse" in finding.remedy
    # Without an optimizer's state a checkpoint is written faster, too.
    smaller = replace(nomination, at_most_ms=1.0)
    cleared = conclude(known(trace), [smaller], (), trials(12.0, free_step=2.0))
    assert cleared.findings == () and "free_step" not in cleared.ruled_out[0]
    # No optimizer is free: what takes little is no cause, and not called free of cost either.
    small = conclude(known(trace), [nomination], (), trials(12.0, free_step=10.5))
    assert small.findings == ()
    words = "with an optimizer that does nothing, a step takes 1.50 ms less, and a cause takes at "
    assert f"{words}least {nomination.bound_share:.0%} of it" in small.ruled_out[0]


def test_where_nothing_was_tried_no_noise_is_claimed_and_the_lines_are_shown() -> None:
    quiet = known(trace_of(0.01, 0.01, 20.0))
    text = printed(quiet)
    assert "No rule applies" in text and "identical runs" not in text
    assert "a.py:20" in text
    assert quiet.to_json()["noise_floor"] is None
    (line,) = [row for row in quiet.to_json()["lines"] if row["where"] == "a.py:20"]
    assert (line["phase"], line["share"]) == ("other", 1.0)


def test_a_loader_that_is_a_stream_is_suspected() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    stream = replace(trace.facts, loaders=(replace(LOADER, map_style=False),))
    (nomination,) = nominate(replace(trace, facts=stream))
    assert (nomination.rule, nomination.where) == ("slow_data", "a.py:11")
    found = conclude(known(trace), [nomination], (), trials(15.0, replay=3.0))
    (suspect,) = found.suspects
    assert suspect.at_most_ms == 12.0
    assert "Suspected: slow_data at a.py:11" in printed(found)


def test_workers_that_no_other_way_of_sending_helps_stay_suspected() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    loader = replace(LOADER, num_workers=2, plain_collate=False)
    trace = replace(trace, facts=replace(trace.facts, loaders=(loader,)))
    found = conclude(known(trace), nominate(trace), (), trials(15.0, workers=15.0, queued=15.0))
    (suspect,) = found.suspects
    assert (suspect.rule, suspect.at_most_ms) == ("slow_data", 12.0)
    assert suspect.remedy.startswith("more workers than 2 at a.py:3")
    assert "a part of it at most: workers(count=2) gave 1.00x" in suspect.why
    assert found.ruled_out == () and "Checked, no gain by itself" not in printed(found)
    # Samples that are read once take all of the wait away: there is none then.
    plain = replace(trace.facts, loaders=(replace(loader, plain_collate=True),))
    trace = replace(trace, facts=plain)
    found = conclude(known(trace), nominate(trace), (), trials(15.0, resident=15.0, workers=15.0))
    assert found.suspects == () and len(found.ruled_out) == 1


def test_a_remedy_that_is_refused_can_still_be_edited_by_hand() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    (nomination,) = nominate(trace)
    nomination = replace(nomination, bound=None, by_hand="cheaper samples")
    noisy = trials(10.0, 13.0, resident="draws numbers", workers=9.0)
    (suspect,) = conclude(known(trace), [nomination], (), noisy).suspects
    assert "resident" not in suspect.remedy.partition(". In the script")[0]
    assert suspect.remedy.endswith("; cheaper samples")
    noisy = trials(10.0, 13.0, workers=9.0)
    (suspect,) = conclude(known(trace), [nomination], (), noisy).suspects
    assert "cheaper samples" not in suspect.remedy


def test_what_turns_of_whole_epochs_save_is_a_share_of_the_mean_step() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    # The last one waits for workers that start.
    trace = replace(trace, steps=[*trace.steps[:-1], (102.0, 1.0, 1.0, 0.2, 0.8)])
    raced = trials(10.0, resident=5.0)
    (finding,) = conclude(known(trace), nominate(trace), (), raced).findings
    assert finding.cost_ms == pytest.approx(7.5)
    epochs = {name: replace(tried, step="mean") for name, tried in raced.tried.items()}
    (finding,) = conclude(known(trace), nominate(trace), (), replace(raced, tried=epochs)).findings
    assert finding.cost_ms == pytest.approx(trace.step_ms()["mean"] / 2) and finding.cost_ms > 9


def test_a_race_that_does_not_fit_into_the_budget_is_not_begun() -> None:
    short = RaceTime(trace_of(12.0, 0.2, 0.8), 10_000)
    assert short.arms_that_fit(5, 3.0) == 0
    assert short.arms_that_fit(5, short.least_s) == 1
    assert short.arms_that_fit(5, 300.0) == 5
    slow = RaceTime(replace(short.trace, steps=[(900.0, 50.0, 50.0, 0.0, 0.0)] * 20), 90)
    assert slow.seconds(3) < 90
    assert slow.arms_that_fit(3, 40.0) >= 1
    assert replace(short, turn_s=0.15).least_s < short.least_s - 1
    # 60 whole epochs of a second.
    assert replace(short, epoch=64).seconds(4) > 60 > short.seconds(4)


def test_a_cause_that_a_remedy_convicts_needs_no_other_remedy() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    (nomination,) = nominate(trace)
    plans = {str(plan): plan for plan in (*nomination.remedies, nomination.bound) if plan}
    wanted = still_wanted(plans, [nomination], trials(15.0, resident=5.0))
    assert list(wanted) == ["replay"]
    wanted = still_wanted(plans, [nomination], trials(15.0, resident=15.0))
    assert list(wanted) == ["workers(count=2)", "replay"]


def test_turns_in_one_process_count_more_than_fresh_processes() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    both = trials(15.0, resident=15.0, workers=10.0).with_more(trials(15.0, resident=5.0))
    (finding,) = conclude(known(trace), nominate(trace), (), both).findings
    assert finding.plan == {"resident": {}} and finding.cost_ms == pytest.approx(10.0)


def test_what_is_kept_for_trials_is_enough_for_whole_epochs() -> None:
    trace = trace_of(12.0, 0.2, 0.8)
    workers = replace(LOADER, num_workers=2)
    trace = replace(trace, facts=replace(trace.facts, loaders=(workers,), steps_per_epoch=60))
    plans = {"resident": Plan({"resident": {}})}
    subject = _Subject(Lab(Script(path="train.py")), Clock(60.0), lambda _: None)
    kept = _reserve_s(subject, trace, plans) * (1 - SHARE)
    subject = replace(subject, clock=Clock(kept + 0.5))
    needs, _ = _needs(subject, trace, None, plans)
    assert needs.epoch == 60 and needs.arms_that_fit(1, subject.clock.left) == 1
    # Control: with less, turns are parts of epochs, or none fits.
    needs, _ = _needs(replace(subject, clock=Clock(kept - 0.5)), trace, None, plans)
    assert needs.epoch is None


def test_changes_that_no_time_is_left_for_are_not_said_to_be_switched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    duel = MagicMock()
    duel.return_value.__enter__.return_value.race.return_value = MagicMock(
        decisions=(), placebo=None
    )
    monkeypatch.setattr(live_trials, "Duel", duel)
    monkeypatch.setattr(live_trials, "_trials_of", lambda *_: {})
    seen, told = Observation(trace_of(1.0, 1.0), [], MagicMock()), []
    lab, fused = Lab(Script(path="train.py")), Plan({"optimizer": {"implementation": "fused"}})
    for left_s, said in ((0.1, []), (60.0, [1])):
        live_trials.race_live(lab, seen, {"fused": fused}, left_s, told.append)
        assert told == said
