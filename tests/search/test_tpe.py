"""Optuna's TPE proposes: the same values for the same journal, whoever was killed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.search.job_order import Order
from hotlap.search.journal import read
from hotlap.search.parameters import Space
from hotlap.search.result import SearchResult
from hotlap.search.spec import Objective, SearchSpec
from hotlap.search.state import Job, Outcome, SearchState
from hotlap.search.study import JOURNAL, Study, decision
from hotlap.search.tpe import suggest

pytest.importorskip("optuna", reason="needs optuna")

SPACE = Space(
    {
        "lr": hotlap.LogUniform(1e-5, 1.0),
        "width": hotlap.PowerOfTwo(8, 64),
        "depth": hotlap.IntRange(1, 4),
        "kind": hotlap.Choice("a", "b"),
        "drop": hotlap.Uniform(0.0, 0.5),
    },
    {},
    # Outside of the space, as a recipe's own value may be.
    {"lr": 2.0, "width": 8, "depth": 1, "kind": "a", "drop": 0.0},
)
SPEC = SearchSpec(
    "recipe.py", (), SPACE.to_json(), SPACE.defaults, (100,), method="tpe", trials=24, seeds=0
)


class Stopped(Exception):
    """The search was stopped here."""


class Workers:
    """Jobs that end in order, some of them without a value."""

    def __init__(self, count: int, left: int = 10**6) -> None:
        self._count, self._left = count, left
        self._running: list[tuple[Job, Order]] = []

    @property
    def free(self) -> int:
        return self._count - len(self._running)

    def start(self, job: Job, order: Order) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise Stopped
        self._running.append((job, order))
        return {}

    def wait(self) -> list[Outcome]:
        if not self._running:
            return []
        job, order = self._running.pop(0)
        if job.trial % 7 == 3:
            return [Outcome(job, "nan")]
        words = dict(zip(order.words[::2], order.words[1::2], strict=True))
        value = abs(float(words.get("--lr", "2")) - 0.01) + (words.get("--kind") == "a")
        memory = 100 * int(words.get("--width", "8"))
        return [Outcome(job, "done", step=100, value=value, memory_bytes=memory)]

    def close(self) -> None:
        self._running.clear()


def test_a_search_that_is_stopped_proposes_what_one_that_is_not_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Study(tmp_path / "whole", SPEC, SPACE).opened() as study:
        whole = SearchResult(study.run(Workers(1))).to_json()
    for left in (5, 11, 1000):
        with Study(tmp_path / "stopped", SPEC, SPACE).opened() as study:
            try:
                found = SearchResult(study.run(Workers(1, left))).to_json()
            except Stopped:
                continue
    assert json.dumps(found) == json.dumps(whole)
    assert capfd.readouterr() == ("", "")
    for trial in whole["trials"][1:]:
        values = trial["parameters"]
        assert values.keys() == SPACE.distributions.keys()
        assert 1e-5 <= values["lr"] <= 1 and values["width"] in (8, 16, 32, 64)
        assert values["depth"] in (1, 2, 3, 4) and values["kind"] in "ab"


def test_with_several_workers_the_journal_gives_the_same_proposals(tmp_path: Path) -> None:
    with Study(tmp_path, SPEC, SPACE).opened() as study:
        study.run(Workers(3))
    state = SearchState(SPEC)
    for record in read(tmp_path / JOURNAL)[0]:
        if record["kind"] == "job":
            assert decision(state, SPACE) == record
        state.apply(record)


def test_it_learns_from_what_was_tried(tmp_path: Path) -> None:
    with Study(tmp_path, SPEC, SPACE).opened() as study:
        state = study.run(Workers(1))
    later = [trial.values["kind"] for trial in state.trials[14:]]
    assert later.count("b") > 0.6 * len(later)


def test_it_learns_from_several_objectives(tmp_path: Path) -> None:
    spec = replace(SPEC, more=(Objective("memory"),))
    with Study(tmp_path, spec, SPACE).opened() as study:
        state = study.run(Workers(1))
    # Both objectives want `b`, and the second one small widths.
    later = [trial.values["kind"] for trial in state.trials[14:]]
    assert later.count("b") > 0.5 * len(later)
    assert decision(SearchState(spec), SPACE) == next(
        record for record in read(tmp_path / JOURNAL)[0] if record["kind"] == "job"
    )


def test_it_proposes_beside_a_trial_that_has_none(tmp_path: Path) -> None:
    space = replace(SPACE, others={**SPACE.others, "lr": 0.1, "drop": None})
    spec = replace(SPEC, trials=3, defaults=space.defaults)
    with Study(tmp_path, spec, space).opened() as study:
        state = study.run(Workers(1))
    assert state.trials[0].values["drop"] is None
    # An error would be followed by a draw at random.
    assert suggest(space.distributions, state).keys() == space.distributions.keys()


def test_any_seed_is_taken(tmp_path: Path) -> None:
    # NumPy's generators take seeds of 32 bits.
    spec = replace(SPEC, trials=2, seed=20260101)
    with Study(tmp_path, spec, SPACE).opened() as study:
        state = study.run(Workers(1))
    assert len(state.trials) == 2
