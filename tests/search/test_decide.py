"""Decisions: a pure function of the journal, whoever is free and whoever was killed."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.errors import UsageError
from hotlap.search.decide import first_rung, next_job
from hotlap.search.folder import delete, folder_of
from hotlap.search.fronts import best_first, dominates, first_front
from hotlap.search.job_order import Order
from hotlap.search.journal import read
from hotlap.search.parameters import Space
from hotlap.search.propose import propose
from hotlap.search.result import Comparison, SearchResult
from hotlap.search.spec import Objective, SearchSpec, rungs_of
from hotlap.search.state import Job, Outcome, SearchState
from hotlap.search.study import JOURNAL, Study, decision, read_study

SPACE = Space({"lr": hotlap.LogUniform(1e-4, 1e-1)}, {}, {"lr": 0.03})


def spec_of(method: str = "asha", **more: Any) -> SearchSpec:
    rungs = rungs_of(method, more.pop("max_steps", 900), None, 3)
    return SearchSpec(
        "recipe.py", (), SPACE.to_json(), SPACE.defaults, rungs, method=method, **more
    )


def value_of(lr: float, order: Order) -> float:
    """Return a value that is the better, the nearer the rate is to 0.003, and falls with steps."""
    noise = random.Random(f"{lr} {order.repeat}").random()
    return abs(lr - 0.003) * 100 + 1 / order.until**0.5 + 0.001 * noise


class Killed(Exception):
    """The process was killed here."""


class Workers:
    """Jobs that end in the order that their numbers and a seed say."""

    def __init__(
        self, count: int, seed: int = 0, ends: Callable[..., Outcome] | None = None
    ) -> None:
        self._count, self._random = count, random.Random(seed)
        self.running: list[tuple[Job, Order]] = []
        self.started: list[Job] = []
        self.left = 10**9
        self._ends = ends

    @property
    def free(self) -> int:
        return self._count - len(self.running)

    def start(self, job: Job, order: Order) -> dict[str, Any]:
        self._live()
        self.running.append((job, order))
        self.started.append(job)
        return {"pid": 0}

    def wait(self) -> list[Outcome]:
        self._live()
        if not self.running:
            return []
        job, order = self.running.pop(self._random.randrange(len(self.running)))
        if self._ends is not None:
            return [self._ends(job, order)]
        words = order.words
        lr = float(words[words.index("--lr") + 1]) if "--lr" in words else 0.03
        return [Outcome(job, "done", step=order.until, value=value_of(lr, order))]

    def close(self) -> None:
        self.running.clear()

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


def search(folder: Path, spec: SearchSpec, workers: Workers) -> SearchState:
    with Study(folder, spec, SPACE).opened() as study:
        return study.run(workers)


def check_replay(folder: Path, spec: SearchSpec) -> int:
    """Check that each decision follows from the lines before it; return how many there are."""
    state, count = SearchState(spec), 0
    for record in read(folder / JOURNAL)[0]:
        if record["kind"] == "job":
            assert decision(state, SPACE) == record
            count += 1
        state.apply(record)
    return count


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("method", ["asha", "hyperband", "random"])
def test_the_journal_replayed_gives_the_same_decisions(
    method: str, workers: int, tmp_path: Path
) -> None:
    spec = spec_of(method)
    state = search(tmp_path, spec, Workers(workers, seed=workers))
    assert check_replay(tmp_path, spec) >= 24 + 6
    assert SearchResult(read_study(tmp_path)).to_json() == SearchResult(state).to_json()


def test_halving_promotes_from_where_a_trial_stands(tmp_path: Path) -> None:
    workers = Workers(2)
    result = SearchResult(search(tmp_path, spec_of(seeds=0), workers))
    state = result.state
    assert state.spec.rungs == (100, 300, 900)
    assert len(state.trials) == 24 and result.stopped_early >= 12
    assert state.steps <= 0.5 * result.full_steps
    # Each rung of a trial was trained once, and in order.
    assert len(set(workers.started)) == len(workers.started)
    for trial in state.trials:
        assert [j.rung for j in workers.started if j.trial == trial.number] == [*trial.outcomes]
    # The best of the first rung, by number of trials, was promoted.
    first = state.ranked(0)
    assert all(1 in trial.outcomes for trial in first[: 24 // 3])
    assert result.best is not None and result.best.number > 0
    assert abs(float(result.best.values["lr"]) - 0.003) < 0.002


def test_the_command_separates_what_hotlap_train_would_take_for_its_own() -> None:
    values = {"lr": 0.1, "keep": 3}
    spec = SearchSpec("recipe.py", ("--epochs", "2"), {}, None, (9,))
    state = SearchState(spec)
    state.apply({"kind": "job", **Job(0, 0)._asdict(), "values": values})
    for reserved, words in ((["--run-dir"], ""), (["--keep"], "-- ")):
        result = SearchResult(state, frozenset(reserved), ("--plan", "p.toml"))
        expected = f"hotlap train recipe.py --plan p.toml {words}--epochs 2 --lr 0.1 --keep 3"
        assert result.command(state.trials[0]) == expected


@pytest.mark.parametrize("trials", [1, 2, 3, 5])
def test_some_trial_is_trained_to_the_end_however_few_there_are(
    trials: int, tmp_path: Path
) -> None:
    result = SearchResult(search(tmp_path, spec_of(trials=trials), Workers(1)))
    assert result.best is not None and result.best.steps == 900


def test_a_search_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path: Path) -> None:
    spec = spec_of(trials=30)
    whole = SearchResult(search(tmp_path / "whole", spec, Workers(1)))
    kills, state = 0, None
    while state is None:
        workers = Workers(1)
        workers.left = 1 + kills % 5
        try:
            state = search(tmp_path / "killed", spec, workers)
        except Killed:
            kills += 1
            # What was written last may be torn.
            with open(tmp_path / "killed" / JOURNAL, "ab") as stream:
                stream.write(b'{"kind": "result", "tri')
    assert kills >= 20
    assert SearchResult(state).to_json() == whole.to_json()
    assert check_replay(tmp_path / "killed", spec) == check_replay(tmp_path / "whole", spec)


def test_failures_are_results(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        if job.trial % 3 == 1:
            return Outcome(job, "memory", error="too large")
        if job.trial == 2 and job.rung == 1:
            return Outcome(job, "nan", step=300, error="loss is nan")
        value = 1.0 + job.trial + (0.5 if job.trial == 0 else 0) - job.rung
        return Outcome(job, "done", step=order.until, value=value - 10 * (job.trial == 2))

    workers = Workers(2, ends=ends)
    result = SearchResult(search(tmp_path, spec_of(trials=12), workers))
    assert result.failures == {"memory": 4, "nan": 1}
    assert not any(j.trial % 3 == 1 and j.rung for j in workers.started)
    # The best one of the first rung failed at the second, and another one was found.
    assert result.best is not None and result.best.number == 0
    assert len(workers.started) == len(set(workers.started))


def test_a_search_where_everything_fails_has_no_best(tmp_path: Path) -> None:
    workers = Workers(1, ends=lambda job, _: Outcome(job, "crash", error="no"))
    result = SearchResult(search(tmp_path, spec_of(trials=4), workers))
    assert result.best is None and result.comparison is None
    assert json.dumps(result.to_json())


def test_trials_that_need_too_much_memory_are_no_candidates(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        held = 100 if job.trial == 3 else 10
        value = -float(job.trial == 3)
        return Outcome(job, "done", step=order.until, value=value, memory_bytes=held)

    for limit, best in ((None, 3), (50, 0)):
        spec = spec_of(trials=6, memory_bytes=limit)
        result = SearchResult(search(tmp_path / str(limit), spec, Workers(1, ends=ends)))
        assert result.best is not None and result.best.number == best


def test_a_trial_that_is_over_early_has_come_to_every_rung(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        return Outcome(job, "done", step=50, value=float(job.trial), is_over=True)

    workers = Workers(1, ends=ends)
    result = SearchResult(search(tmp_path, spec_of(trials=4, seeds=0), workers))
    assert [job.rung for job in workers.started] == [0] * 4
    assert result.full_steps == result.state.steps == 200 and result.stopped_early == 0


def test_hyperband_deals_trials_to_brackets() -> None:
    spec = spec_of("hyperband")
    rungs = [first_rung(spec, number) for number in range(17)]
    assert [rungs.count(rung) for rung in range(3)] == [9, 5, 3]


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    search(tmp_path, spec_of(trials=3), Workers(1))
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(UsageError, match="a search with other settings: trials was 3, now it is 4"):
        search(tmp_path, spec_of(trials=4), Workers(1))
    with pytest.raises(UsageError, match="the recipe's file was changed"):
        search(tmp_path, spec_of(trials=3, digest="other"), Workers(1))
    assert (tmp_path / JOURNAL).read_bytes() == before
    # Workers, and with them the threads of each trial, may be others.
    state = search(tmp_path, spec_of(trials=3, threads=7), Workers(2))
    assert state.spec.threads == 1


def test_two_searches_do_not_share_a_folder(tmp_path: Path) -> None:
    spec = spec_of(trials=3)
    with (
        Study(tmp_path, spec, SPACE).opened(),
        pytest.raises(UsageError, match="is in use"),
        Study(tmp_path, spec, SPACE).opened(),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("asha", 0, None, 3), "--max-steps 0"),
        (("asha", 9, 10, 3), "--grace 10"),
        (("asha", 9, None, 1), "--reduction 1"),
        (("random", 9, 3, 3), "--grace 3 cannot be used with --method random"),
    ],
)
def test_wrong_rungs_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rungs_of(*arguments)


def test_rungs_begin_at_grace_and_end_at_the_whole_run() -> None:
    assert rungs_of("asha", 2814, None, 3) == (312, 938, 2814)
    assert rungs_of("asha", 900, 10, 3) == (10, 33, 100, 300, 900)
    assert rungs_of("asha", 900, 900, 3) == (900,)
    assert rungs_of("asha", 2, None, 3) == (1, 2)
    assert rungs_of("random", 900, None, 3) == (900,)


def test_a_gain_within_the_noise_of_seeds_is_the_same() -> None:
    def verdict(best: list[float], own: list[float]) -> str:
        return Comparison.of(best, own, Objective("accuracy", is_maximized=True)).verdict

    assert verdict([0.9, 0.91, 0.92], [0.8, 0.81, 0.2]) == "better"
    assert verdict([0.8, 0.81, 0.2], [0.9, 0.91, 0.92]) == "worse"
    # One seed among them that is as good is no proof, however large the mean gain is.
    assert verdict([0.9, 0.91, 0.92], [0.1, 0.1, 0.905]) == "same"
    assert verdict([0.9, 0.9, 0.9], [0.9, 0.9, 0.9]) == "same"
    found = Comparison.of([1.0, 2.0, 3.0], [4.0, 5.0, 6.5])
    assert (found.verdict, found.gain, found.low, found.high) == ("better", 3.0, 1.0, 5.5)
    # With four seeds, 15 wins of 16 are needed: 2 of the 70 orders have as many.
    assert Comparison.of([1.0, 2.0, 3.0, 4.5], [4.0, 5.0, 7.0, 8.0]).verdict == "better"
    assert Comparison.of([1.0, 2.0, 3.0, 6.0], [4.0, 5.0, 7.0, 8.0]).verdict == "same"


def test_equal_configurations_are_rarely_called_different() -> None:
    generator = random.Random(0)

    def seeds() -> list[float]:
        return [generator.gauss(0, 1) for _ in range(3)]

    called = [Comparison.of(seeds(), seeds()).verdict for _ in range(2000)]
    assert 0.03 < called.count("better") / 2000 < 0.07
    assert 0.03 < called.count("worse") / 2000 < 0.07


def test_the_verdict_of_a_search_is_over_other_seeds_than_its_own(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        # Trial 1 was lucky with the seed that the search used.
        lucky = -5.0 if job.trial == 1 and not job.repeat else 0.0
        value = lucky + 0.01 * random.Random(f"{job.trial} {job.repeat}").random()
        return Outcome(job, "done", step=order.until, value=value)

    result = SearchResult(search(tmp_path, spec_of(trials=9), Workers(1, ends=ends)))
    assert result.comparison is not None and result.comparison.verdict == "same"
    assert result.repeat_steps >= 2 * 3 * 900


def test_an_objective_says_which_way_is_better() -> None:
    assert Objective.parse("loss") == Objective("loss")
    assert Objective.parse("max:accuracy") == Objective("accuracy", is_maximized=True)
    for text in ("accuracy", "up:accuracy", "max:", ""):
        with pytest.raises(UsageError, match=r"max:(NAME|accuracy)|min:NAME"):
            Objective.parse(text)


def test_nothing_is_decided_while_the_last_trials_run() -> None:
    spec = spec_of(trials=1)
    state = SearchState(spec)
    state.apply({"kind": "job", **Job(0, 0)._asdict(), "values": {"lr": 0.1}})
    assert next_job(state) is None


def test_a_trial_that_failed_is_one_of_those_compared() -> None:
    state = SearchState(spec_of())
    for number in range(3):
        job = Job(number, 0)
        state.apply({"kind": "job", **job._asdict(), "values": {"lr": 0.1}})
        outcome = Outcome(job, "done", value=float(number)) if number < 2 else Outcome(job, "nan")
        assert next_job(state) != Job(0, 1)
        state.apply({"kind": "result", **outcome.to_json()})
    # Three were compared, of which one continues.
    assert next_job(state) == Job(0, 1)


def test_points_are_sorted_front_by_front_and_the_ends_of_a_front_come_first() -> None:
    points = [(2, 2), (1, 3), (3, 1), (4, 4), (2, 5), (1.5, 2.9), (1, 3)]
    assert first_front(points) == [0, 1, 2, 5, 6]
    order = best_first(points)
    # Of the first front its ends, then what lies apart from others; then the next front.
    assert {*order[:2]} <= {1, 2, 6} and order[-2:] == [3, 4]
    assert best_first([(3,), (1,), (2,), (1,)]) == [1, 3, 2, 0]
    assert best_first([]) == [] and first_front([]) == []


def two_objectives(job: Job, order: Order) -> Outcome:
    """Return an outcome in which the better of two objectives is the worse in the other."""
    lr = 0.03 if job.trial == 0 else float(order.words[order.words.index("--lr") + 1])
    noise = 0.0001 * random.Random(f"{lr} {job.repeat}").random()
    worse = 0.5 if job.trial % 3 == 0 else 0.0
    seconds = order.until * (0.2 - lr + worse)
    return Outcome(
        job, "done", step=order.until, value=lr + worse + noise, measures={}, seconds=seconds
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_several_objectives_give_a_front_of_which_no_trial_beats_another(
    workers: int, tmp_path: Path
) -> None:
    spec = spec_of(trials=18, more=(Objective("seconds"),))
    state = search(tmp_path, spec, Workers(workers, ends=two_objectives))
    check_replay(tmp_path, spec)
    again = read_study(tmp_path)
    assert again.spec.objectives == (Objective(), Objective("seconds"))
    result = SearchResult(state)
    assert SearchResult(again).to_json() == result.to_json()
    values = [tuple(each["values"].values()) for each in result.to_json()["front"]]
    assert len(values) >= 2 and values == sorted(values)
    assert not any(dominates(one, other) for one in values for other in values)
    # What is beaten in both is not trained to the end.
    assert all(trial.number % 3 for trial in result.front)
    # The best in each objective was repeated with other seeds, and compared in both.
    ends = {result.front[0].number, result.front[-1].number}
    assert ends <= {t.number for t in state.trials if len(t.repeats) == 3}
    compared = {e["number"]: e["comparisons"] for e in result.to_json()["front"]}
    assert all(compared[number]["seconds"]["seeds"] == 3 for number in ends)
    assert result.best is result.front[0]


def test_a_trial_without_one_of_the_objectives_is_no_candidate() -> None:
    state = SearchState(spec_of(more=(Objective("accuracy", is_maximized=True),)))
    for number, measures in enumerate([{}, {"accuracy": 0.5}]):
        job = Job(number, 0)
        state.apply({"kind": "job", **job._asdict(), "values": {"lr": 0.1}})
        outcome = Outcome(job, "done", value=float(number), measures=measures)
        state.apply({"kind": "result", **outcome.to_json()})
    assert [trial.number for trial in state.ranked(0)] == [1]
    assert state.ranks_at(state.trials[1], 0) == (1.0, -0.5)


def test_a_configuration_that_fails_with_other_seeds_is_not_the_best(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        # Trial 1 is the best one with the seed of the search, and fails with two others.
        if job.trial == 1 and job.repeat in (1, 2):
            return Outcome(job, "nan")
        return Outcome(job, "done", step=order.until, value=float(job.trial != 1))

    spec = spec_of("random", trials=6)
    result = SearchResult(search(tmp_path, spec, Workers(1, ends=ends)))
    assert result.state.ranked(0)[0].number == 1
    assert result.best is not None and result.best.number != 1


def test_a_seed_that_fails_is_worse_than_one_that_does_not() -> None:
    fine, failing = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.0, 0.0, 0.0, None, None, None]
    assert Comparison.of(failing, fine).verdict == "same"
    assert Comparison.of([*failing[3:], None, None, None], fine).verdict == "worse"
    found = Comparison.of(fine[:3], [None, None, None])
    assert found.verdict == "better"
    # JSON has no infinity.
    assert (found.to_json()["gain"], found.to_json()["low"]) == (None, None)
    equal = Comparison.of([None] * 3, [None] * 3)
    assert (equal.verdict, equal.gain) == ("same", 0.0)


def test_where_those_that_reached_the_end_failed_another_one_is_led_there(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        if job.rung == 2 and job.trial == 0:
            return Outcome(job, "nan")
        return Outcome(job, "done", step=order.until, value=float(job.trial))

    result = SearchResult(search(tmp_path, spec_of(trials=6, seeds=0), Workers(1, ends=ends)))
    assert result.state.trials[0].failed
    assert result.best is not None and result.best.number == 1


def test_a_trial_that_grows_too_large_is_not_decided_again_and_again(tmp_path: Path) -> None:
    def ends(job: Job, order: Order) -> Outcome:
        held = 100 if job.rung else 10
        return Outcome(job, "done", step=order.until, value=1.0, memory_bytes=held)

    workers = Workers(1, ends=ends)
    workers.left = 60
    result = SearchResult(search(tmp_path, spec_of(trials=3, memory_bytes=50), workers))
    assert result.best is None
    assert len(set(workers.started)) == len(workers.started)


def test_values_without_a_derived_one_are_drawn_again(tmp_path: Path) -> None:
    depth = hotlap.IntRange(1, 4)
    made = hotlap.Derived(lambda depth: 1 / (depth - 1))
    space = Space({"depth": depth}, {"decay": made}, {"depth": 2, "decay": 1.0})
    spec = replace(spec_of("random", trials=20), space=space.to_json(), defaults=space.defaults)
    with Study(tmp_path, spec, space).opened() as study:
        state = study.run(Workers(1))
    assert {trial.values["depth"] for trial in state.trials} == {2, 3, 4}
    # Where there is none for any, that is said.
    none = Space({"depth": depth}, {"decay": hotlap.Derived(lambda depth: depth / 0)}, {})
    with pytest.raises(UsageError, match=r"no value for any of 100 .*division by zero"):
        propose(none, SearchState(replace(spec, defaults=None)))


def test_a_default_that_json_lacks_is_no_configuration_to_begin_with() -> None:
    space = Space({"clip": hotlap.Uniform(0.1, 5)}, {}, {"clip": float("inf")})
    assert space.defaults is None


def test_trials_without_their_journal_are_not_taken_for_those_of_a_new_search(
    tmp_path: Path,
) -> None:
    search(tmp_path, spec_of(trials=2), Workers(1))
    (tmp_path / "trials" / "0000").mkdir()
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(UsageError, match=r"but not its journal.*--again"):
        search(tmp_path, spec_of(trials=2), Workers(1))
    delete(tmp_path)
    search(tmp_path, spec_of(trials=2), Workers(1))


def test_a_folder_of_somebody_elses_is_not_taken_for_that_of_a_search(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "patients.csv").touch()
    with pytest.raises(UsageError, match="does not hold a search"):
        folder_of("recipe.py", str(tmp_path))
    (tmp_path / "trials" / "patients.csv").unlink()
    (tmp_path / "trials" / "0007-seed2").mkdir()
    assert folder_of("recipe.py", str(tmp_path)) == tmp_path
