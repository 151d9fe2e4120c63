"""Savers of several ranks: what ranks hold in parts all write, anything else the first one."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.checkpoint.read import find_newest, read
from hotlap.distributed.reduce import Reduce
from hotlap.engine.build import build
from hotlap.engine.state import interval, saving
from hotlap.engine.state.agreeing import agree_on_parts
from hotlap.engine.state.content import capture
from hotlap.engine.state.interval import Every, Interval
from hotlap.engine.state.position import Position
from hotlap.engine.state.saving import Saver
from hotlap.engine.state.validity import check
from hotlap.errors import RunError, StorageError
from hotlap.techniques import EXACT_PLAN
from tests.checkpoint.rank_threads import on_ranks, parts_of
from tests.checkpoint.test_sharded_steps import FAULTS, failing
from tests.engine.test_saving import numbers, short, step_of

CLOCK = {"steps": 1, "items": 8, "loss": 1.0}
HERE = Position(1, 0, 1)


@pytest.fixture(scope="module")
def built() -> Iterator[Any]:
    """Give a run after its first step."""
    made = build(short(), EXACT_PLAN, device="cpu")
    made.optimizer.zero_grad()
    for parameter in made.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.optimizer.step()
    yield made
    made.end()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.local]:
    """Let what is captured be a rank's parts: that of the thread, where one is said."""
    held = threading.local()

    def captured(*given: Any) -> Any:
        tensors, state = capture(*given)
        return parts_of(tensors, held.rank, held.world) if hasattr(held, "rank") else tensors, state

    monkeypatch.setattr(saving, "capture", captured)
    return held


def save(
    built: Any, run: Path, held: Any, reduce: Reduce, *, must: bool = True, world: int = 2
) -> list[str]:
    """Save a run as one of its ranks, and return what was said."""
    said: list[str] = []
    if held is not None:
        held.rank, held.world = reduce.rank, world
    saver = Saver(run, Every(epochs=1), 2, said.append, reduce)
    saver.prepare(None)
    reduce.wait()
    try:
        saver.save(built, HERE, CLOCK, must=must)
    finally:
        reduce.wait()
        saver.close()
    return said


def test_what_ranks_hold_in_parts_is_saved_by_all_and_resumed_from_by_one(
    built: Any, parts: Any, tmp_path: Path
) -> None:
    assert on_ranks(2, lambda reduce: save(built, tmp_path, parts, reduce)) == [[], []]
    found = read(step_of(tmp_path, 1))
    check(found)
    wanted, state = capture(built, HERE)
    for group in ("model", "optimizer"):
        assert found.tensors[group].keys() == wanted[group].keys() and wanted[group]
        for name, tensor in wanted[group].items():
            assert torch.equal(found.tensors[group][name], tensor), name
    assert found.state["task"] == state["task"]
    assert not (tmp_path / "ckpt" / "LOCK").exists()


def test_what_all_ranks_hold_is_saved_by_the_first_one_as_it_always_was(
    built: Any, tmp_path: Path
) -> None:
    assert on_ranks(2, lambda reduce: save(built, tmp_path / "two", None, reduce)) == [[], []]
    assert on_ranks(1, lambda reduce: save(built, tmp_path / "one", None, reduce)) == [[]]
    for file in step_of(tmp_path / "one", 1).iterdir():
        assert (step_of(tmp_path / "two", 1) / file.name).read_bytes() == file.read_bytes()
    assert len([*step_of(tmp_path / "one", 1).iterdir()]) == 5


def test_one_process_that_holds_parts_saves_whole_tensors(
    built: Any, parts: Any, tmp_path: Path
) -> None:
    assert on_ranks(1, lambda reduce: save(built, tmp_path, parts, reduce, world=1)) == [[]]
    assert (step_of(tmp_path, 1) / "model.safetensors").exists()


def test_a_part_that_is_not_finite_makes_the_step_unfit_on_all_ranks(
    built: Any, parts: Any, tmp_path: Path
) -> None:
    *_, (name, last) = built.model.named_parameters()
    kept = last.detach().clone()
    try:
        with torch.no_grad():
            last[-1] = float("nan")
        said = on_ranks(2, lambda reduce: save(built, tmp_path, parts, reduce))
    finally:
        with torch.no_grad():
            last.copy_(kept)
    assert len(last) > 1 and said[0] == said[1]
    assert f"'{name}' is not finite after step 1" in said[0][0]
    assert find_newest(tmp_path / "ckpt")[0] is None and numbers(tmp_path) == [1]


@pytest.mark.parametrize("where", [("write", (1,)), ("sync", (0,)), ("prepare", (0, 1))], ids=str)
def test_a_failed_save_ends_all_ranks_or_none(
    where: Any, built: Any, parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, *FAULTS[where])
        ended = on_ranks(2, lambda reduce: save(built, tmp_path / "a", parts, reduce))
        said = on_ranks(2, lambda reduce: save(built, tmp_path / "b", parts, reduce, must=False))
    assert [type(error) for error in ended] == [StorageError] * 2
    assert str(ended[0]) == str(ended[1])
    assert said[0] == said[1]
    assert "No space left" in said[0][0] and "Training continues" in said[0][0]
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b") == []


def test_a_rank_that_is_alone_saves_only_what_it_holds_whole(
    built: Any, parts: Any, tmp_path: Path
) -> None:
    def alone(reduce: Reduce) -> None:
        if reduce.rank == 0:
            Saver(tmp_path, Every(epochs=1), 2, reduce=reduce).save_alone(built, HERE, CLOCK)

    assert on_ranks(2, alone) == [None, None]
    assert numbers(tmp_path) == [1]

    def in_parts(reduce: Reduce) -> None:
        parts.rank, parts.world = reduce.rank, 2
        alone(reduce)

    error, nothing = on_ranks(2, in_parts)
    assert type(error) is StorageError and nothing is None
    assert "rank 0 ended alone" in str(error)


def test_ranks_that_are_not_at_one_step_save_nothing(built: Any) -> None:
    tensors, state = capture(built, HERE)

    def agree(reduce: Reduce) -> Any:
        own = parts_of(tensors, reduce.rank, 2)
        return agree_on_parts(own, state, reduce.rank + 1, None, reduce)

    assert all("the ranks are at the steps [1, 2]" in str(e) for e in on_ranks(2, agree))

    def twice(reduce: Reduce) -> Any:
        return agree_on_parts(parts_of(tensors, 0, 2), state, 1, None, reduce)

    errors = on_ranks(2, twice)
    assert all(type(error) is RunError and "overlap" in str(error) for error in errors)


def test_what_one_rank_alone_knows_of_an_optimizer_is_kept(built: Any) -> None:
    tensors, state = capture(built, HERE)

    def agree(reduce: Reduce) -> Any:
        scalars = {f"{reduce.rank}/count": reduce.rank}
        own = {**state, "optimizer": {**state["optimizer"], "scalars": scalars}}
        return agree_on_parts(parts_of(tensors, reduce.rank, 2), own, 1, None, reduce).state

    for found in on_ranks(2, agree):
        assert found["optimizer"]["scalars"] == {"0/count": 0, "1/count": 1}


def test_the_first_ranks_clock_says_when_all_ranks_save(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = threading.local(), [0, 0]
    monkeypatch.setattr(interval.time, "monotonic", lambda: getattr(clock, "now", 0.0))

    def due(reduce: Reduce) -> list[int]:
        real = reduce.sum_numbers

        def counted(given: Any) -> Any:
            asked[reduce.rank] += 1
            return real(given)

        monkeypatch.setattr(reduce, "sum_numbers", counted)
        found, clock.now = [], 0.0
        every = Interval(Every(seconds=30), reduce)
        for step in range(1, 100):
            clock.now += 1 if reduce.rank == 0 else 100
            if every.is_due(Position(step), ends_epoch=False):
                found.append(step)
                every.restart()
        return found

    assert on_ranks(2, due) == [[30, 60, 90]] * 2
    # Not after each step.
    assert asked[0] == asked[1] < 30


def test_steps_and_epochs_need_no_word_between_ranks() -> None:
    def due(reduce: Any) -> Any:
        reduce.sum_numbers = reduce.gather = None
        by_step, by_epoch = (Interval(e, reduce) for e in (Every(steps=3), Every(epochs=2)))
        return [
            (by_step.is_due(at, ends_epoch=ends), by_epoch.is_due(at, ends_epoch=ends))
            for at, ends in ((Position(3, 1), False), (Position(4, 2), True))
        ]

    assert on_ranks(2, due) == [[(True, False), (False, True)]] * 2
