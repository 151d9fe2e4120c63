"""What `hotlap search` shows of a search."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import hotlap
from hotlap.errors import UnknownName
from hotlap.report import searching
from hotlap.report.page.search import page_of_search
from hotlap.search.result import SearchResult
from hotlap.search.spec import Objective, SearchSpec
from hotlap.search.state import Job, Outcome, SearchState

COLUMNS = ("trial", "state", "step", "value", "lr", "seeds")


def state_of(*outcomes: Outcome, seeds: int = 3) -> SearchState:
    space = {"lr": hotlap.LogUniform(1e-4, 1e-1).to_json()}
    objective = Objective("accuracy", is_maximized=True)
    spec = SearchSpec(
        "my recipe.py",
        (),
        space,
        {"lr": 0.03},
        (10, 100),
        trials=4,
        seeds=seeds,
        objective=objective,
    )
    state = SearchState(spec)
    for outcome in outcomes:
        values = {"lr": 0.03 if outcome.job.trial == 0 else 0.001 * outcome.job.trial}
        state.apply({"kind": "job", **outcome.job._asdict(), "values": values})
        state.apply({"kind": "result", **outcome.to_json()})
    return state


def done(trial: int, rung: int, value: float, repeat: int = 0) -> Outcome:
    return Outcome(Job(trial, rung, repeat), "done", step=(10, 100)[rung], value=value)


def shown(what: Any, width: int = 100) -> str:
    console = Console(width=width, markup=False, highlight=False, file=io.StringIO())
    what(console) if callable(what) else console.print(what)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


FOUND = [done(0, 0, 0.5), done(1, 0, 0.8), Outcome(Job(2, 0), "nan", error="loss is nan")]
WHOLE = [*FOUND, done(3, 0, 0.7), done(1, 1, 0.9)]


def page(state: SearchState) -> str:
    result = SearchResult(state)
    return shown(lambda console: searching.page(result, COLUMNS, console, "my.search"), 300)


def test_the_page_gives_the_best_as_a_command_and_says_what_it_is_worth() -> None:
    seeds = [done(1, 1, 0.9, n) for n in (1, 2, 3)]
    own = [done(0, 1, value, n) for n, value in enumerate((0.6, 0.7, 0.2), 1)]
    text = page(state_of(*WHOLE, *seeds, *own))
    assert "hotlap train 'my recipe.py' --lr 0.001" in text
    assert "better than the recipe's own values by +0.3 (90 % interval +0.2 to +0.7" in text
    assert "1 trial ended with nan; trial 2: loss is nan (my.search/trials/0002/log.txt)" in text
    assert "0 (recipe's own)" in text and "3 trials were stopped early" not in text
    own[0] = done(0, 1, 0.95, 1)
    assert "Same as the recipe's own values, within the noise" in page(
        state_of(*WHOLE, *seeds, *own)
    )


def test_seeds_that_failed_are_said_beside_a_gain_without_a_bound() -> None:
    seeds = [done(1, 1, 0.9, n) for n in (1, 2, 3)]
    own = [done(0, 1, 0.5, 1), *(Outcome(Job(0, 1, n), "nan") for n in (2, 3))]
    state = state_of(*WHOLE, *seeds, *own)
    text = page(state)
    assert "better than the recipe's own values by +inf" in text
    assert "its own: 0.5 (0.5 to 0.5), and 2 of 3 seeds failed" in text
    # A page has no infinity, and draws no interval that ends in one.
    drawn = page_of_search({**SearchResult(state).to_json(), "objective": "max:accuracy"})
    assert "by no bound" in drawn.answer
    assert "where the recipe's own failed with 2 of them" in drawn.answer


def test_the_page_says_what_was_not_found() -> None:
    failed = [Outcome(Job(n, 0), "crash", error=f"no {n}") for n in range(2)]
    text = page(state_of(*failed))
    assert "no best configuration" in text and "2 trials ended with crash; trial 0: no 0" in text
    assert "own values are the best" in page(state_of(done(0, 0, 0.9), done(0, 1, 0.9), seeds=0))
    assert "not compared" in page(state_of(*WHOLE, seeds=0))


def test_trials_that_are_too_large_are_said_to_be_where_none_is_left() -> None:
    held = (322 * 2**20 + 1, 900 * 2**20)
    state = state_of(
        *(replace(done(n, 0, 0.5), memory_bytes=size) for n, size in enumerate(held)),
        # What failed says why, however much it held.
        replace(FOUND[2], memory_bytes=900 * 2**20),
    )
    within = page(state)
    assert "too large" not in within and "No trial was trained to the end" in within
    state.spec = replace(state.spec, memory_bytes=100 * 2**20)
    text = page(state)
    rows = [line.split() for line in text.splitlines() if "too large" in line]
    assert [row[0] for row in rows] == ["0", "1"]
    assert "2 of 3 trials held more than --memory 100 MiB (the least: 323 MiB)" in text
    assert "a larger --memory" in text and "1 trial ended with nan" in text
    assert SearchResult(state).stopped_early == 0
    line = searching.outcome_line(state, Job(1, 0))
    assert line == "trial 1: accuracy 0.5, too large with 900 MiB, at step 10, lr=0.001"
    state.apply({"kind": "job", **Job(3, 0)._asdict(), "values": {"lr": 0.1}})
    small = replace(done(3, 0, 0.4), memory_bytes=2**20, is_over=True)
    state.apply({"kind": "result", **small.to_json()})
    text = page(state)
    assert "best: trial 3" in text and "(the least: 323 MiB), and are no candidates" in text


def test_a_trial_is_whole_where_its_own_task_has_ended() -> None:
    over = replace(done(3, 0, 0.7), step=6, is_over=True)
    rows = page(state_of(*FOUND, over, done(1, 1, 0.9))).splitlines()
    states = {row.split()[0]: row for row in rows[1:4]}
    # One that was stopped by --max-steps has more to train.
    assert " 100 steps " in states["1"] and " whole " in states["3"] and " stopped " in states["0"]


def test_the_live_table_shows_the_best_first_and_what_runs() -> None:
    state = state_of(*FOUND, done(3, 0, 0.7), replace(done(1, 1, 0.9), is_over=True))
    state.apply({"kind": "job", **Job(3, 1)._asdict()})
    lines = shown(searching.live_table(state, COLUMNS, 61.0)).splitlines()
    assert lines[0].startswith("4 of 4 trials, 1 running, 120 steps, about 1:01 left")
    assert [line.split()[0] for line in lines[2:]] == ["1", "3", "0"]
    assert "whole" in lines[2] and "running" in lines[3] and "stopped" in lines[4]


def test_lines_of_outcomes() -> None:
    state = state_of(*WHOLE)
    assert searching.outcome_line(state, Job(2, 0)) == "trial 2: nan: loss is nan"
    line = searching.outcome_line(state, Job(1, 1))
    assert line == "trial 1: accuracy 0.9 at step 100, lr=0.001"
    state.apply({"kind": "job", **Job(1, 1, 2)._asdict()})
    assert searching.outcome_line(state, Job(1, 1, 2)) == "trial 1, seed +2: to step 100, lr=0.001"
    state.spec = replace(state.spec, is_own_length=True)
    assert searching.outcome_line(state, Job(1, 1, 2)) == "trial 1, seed +2: to its end, lr=0.001"


def test_the_time_that_is_left_follows_from_the_trials_own_lengths() -> None:
    def expected(length: int | None, is_own_length: bool = True) -> int:
        # Two of four trials; a trial of the recipe's own length takes 100 steps.
        ended = [
            Outcome(Job(number, 0), "done", step=10, value=0.5, whole_steps=length)
            for number in range(2)
        ]
        state = state_of(*ended)
        state.spec = replace(state.spec, is_own_length=is_own_length)
        return searching._steps_expected(state)

    assert expected(100) == expected(None) == expected(400, is_own_length=False)
    assert expected(400) == 4 * expected(100)


def test_a_default_that_is_none_is_a_dash() -> None:
    state = state_of(*WHOLE)
    state.trials[0].values = {"lr": 0.1, "clip": None}
    state.spec = replace(state.spec, defaults=state.trials[0].values)
    assert searching.parameters_text(state.trials[0].values) == "lr=0.1 clip=-"
    page = page_of_search(SearchResult(state).to_json())
    tables = [block for section in page.sections for block in section.blocks]
    assert any("-" in row for table in tables for row in getattr(table, "rows", ()))
    assert not any("None" in row for table in tables for row in getattr(table, "rows", ()))


def test_columns_are_those_of_the_table_and_the_parameters() -> None:
    assert searching.columns_given(None, ("lr",)) == searching.DEFAULT_COLUMNS
    assert searching.columns_given("trial, lr", ("lr",)) == ("trial", "lr")
    with pytest.raises(UnknownName, match="Did you mean 'value'"):
        searching.columns_given("vlaue", ("lr",))


def test_a_front_is_shown_with_what_trains_each_of_its_trials() -> None:
    seconds = {0: 9.0, 1: 5.0, 2: 2.0}
    outcomes = [
        replace(done(number, 1, value), seconds=seconds[number], memory_bytes=number * 2**30)
        for number, value in enumerate([0.5, 0.8, 0.7])
    ]
    state = state_of(*outcomes)
    state.spec = replace(state.spec, more=(Objective("seconds"),), memory_bytes=2**30)
    text = page(state)
    # The third one holds too much memory.
    assert "too large" in text and "0.8 / 5" in text
    assert "None of these is better than another in accuracy and seconds" in text
    assert text.count("hotlap train") == 1 and "--lr 0.001" in text
