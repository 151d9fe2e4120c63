"""Ranks that do not begin alike are refused before their first step, all with the same words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

import hotlap
from hotlap.checkpoint.read import Checkpoint
from hotlap.distributed.reduce import Reduce
from hotlap.engine.build import build
from hotlap.engine.checks.same_on_ranks import check_given, check_task
from hotlap.engine.state import beginning
from hotlap.engine.state.beginning import Beginning, begin
from hotlap.engine.state.finding import find
from hotlap.errors import CheckpointCorrupt, UsageError
from hotlap.plan import Plan
from tests.checkpoint.rank_threads import on_ranks
from tests.distributed.cases import COUNT, exact
from tests.distributed.runs import ended, started
from tests.engine import lattice


def said_by_all(found: list[Any]) -> str:
    """Return what every rank has refused with, the same on all of them."""
    assert all(isinstance(each, UsageError) for each in found), found
    (words,) = {str(each) for each in found}
    return words


def part(indices: list[int]) -> hotlap.Task:
    return exact(data=Subset(lattice.data(COUNT), indices))


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        (
            exact(),
            exact(data=lattice.data(COUNT - 1)),
            "the task's samples is 51 on rank 1, but 52",
        ),
        (exact(), exact(held_out=lattice.data(4)), "held_out is 4 on rank 1, but 22"),
        (exact(), exact(epochs=4), "the task's epochs is 4 on rank 1, but 3"),
        (exact(), exact(seed=1), "the task's seed is 1 on rank 1, but 0"),
        (part([0, 1, 2, 3]), part([4, 5, 6, 7]), "the digest of some samples of data is"),
        (
            exact(),
            exact(data=torch.utils.data.TensorDataset(*(-t for t in lattice.data(COUNT).tensors))),
            "the digest of some samples of data is",
        ),
    ],
    ids=["samples", "held out", "epochs", "seed", "subset", "rows"],
)
def test_other_tasks_are_refused(first: hotlap.Task, other: hotlap.Task, words: str) -> None:
    def check(reduce: Reduce) -> None:
        check_task(other if reduce.rank else first, Plan(), reduce)

    assert words in said_by_all(on_ranks(2, check))


def test_other_plans_are_refused_with_the_likely_cause() -> None:
    plans = [Plan({"optimizer": {"implementation": "foreach"}}), Plan()]
    found = on_ranks(2, lambda reduce: check_task(exact(), plans[reduce.rank], reduce))
    words = said_by_all(found)
    assert words.startswith("the plan is (plain) on rank 1, but optimizer(")
    assert "machines with the same CPU" in words


def test_the_same_tasks_and_plans_are_taken() -> None:
    # Each rank makes its own, of the same samples.
    def check(reduce: Reduce) -> None:
        for task in (exact(), part([0, 1, 5]), exact(batch_size=4, clip_norm=0.5)):
            check_task(task, Plan({"optimizer": {"implementation": "foreach"}}), reduce)

    assert on_ranks(3, check) == [None] * 3


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    hotlap.train(exact(epochs=2), device="cpu", run_dir=folder)
    return folder


def begun(run_dir: Path, saved: Callable[[int], Checkpoint | None]) -> list[Any]:
    def work(reduce: Reduce) -> Beginning:
        def make() -> Any:
            return build(exact(epochs=2), Plan(), device="cpu", reduce=reduce)

        return begin(make, saved(reduce.rank), "auto", run_dir, lambda _: None)

    return on_ranks(2, work)


def steps_of(run_dir: Path) -> tuple[Any, Any]:
    newest, _ = find("auto", run_dir)
    assert newest is not None
    return newest, find("auto", run_dir, before=newest.path)[0]


def test_ranks_that_find_other_checkpoints_are_refused(run_dir: Path) -> None:
    newest, older = steps_of(run_dir)
    assert older is not None
    words = said_by_all(begun(run_dir, lambda rank: older if rank else newest))
    assert f"'{older.path.name}' on rank 1, but '{newest.path.name}' on rank 0" in words
    assert "a --run-dir that all nodes share" in words
    words = said_by_all(begun(run_dir, lambda rank: None if rank else newest))
    assert "the checkpoint to resume from is none on rank 1" in words


def test_ranks_that_find_the_same_checkpoint_begin_there(run_dir: Path) -> None:
    newest, _ = steps_of(run_dir)
    assert [each.position.step for each in begun(run_dir, lambda _: newest)] == [newest.step] * 2
    assert [each.position.step for each in begun(run_dir, lambda _: None)] == [0, 0]


@pytest.mark.parametrize("damaged", [(1,), (0, 1)])
def test_a_checkpoint_that_one_rank_cannot_load_is_used_by_none(
    damaged: tuple[int, ...], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, older = steps_of(run_dir)
    restore = beginning.restore

    def restored(built: Any, saved: Checkpoint) -> Any:
        if saved.step == newest.step and built.reduce.rank in damaged:
            raise CheckpointCorrupt("a bit has flipped")
        return restore(built, saved)

    monkeypatch.setattr(beginning, "restore", restored)
    found = begun(run_dir, lambda _: newest)
    if damaged == (1,):
        assert "' is damaged, so not loaded on rank 1" in said_by_all(found)
        return
    # All of them go on from the one before.
    assert [each.position.step for each in found] == [older.step] * 2
    assert [each.unfit for each in found] == [{newest.path.name}] * 2


def test_learning_rates_of_one_rank_are_refused() -> None:
    def work(reduce: Reduce) -> Beginning:
        task = exact(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1 + reduce.rank))
        make = lambda: build(task, Plan(), device="cpu", reduce=reduce)  # noqa: E731
        return begin(make, None, None, None, lambda _: None)

    assert "the list of learning rates is [1.1] on rank 1, but [0.1]" in said_by_all(
        on_ranks(2, work)
    )


def test_other_weights_to_begin_with_are_refused() -> None:
    def check(reduce: Reduce) -> None:
        check_given({"a": torch.ones(2), "epoch": 1}, "w.pt", reduce)
        check_given({"a": torch.ones(2), "b": torch.ones(2) + reduce.rank}, "w.pt", reduce)

    words = said_by_all(on_ranks(2, check))
    assert words.startswith("'b' in 'w.pt' differs between rank 1 and rank 0")


@pytest.mark.slow
def test_nodes_whose_disks_hold_other_steps_are_refused_in_time(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    hotlap.train(exact(epochs=1), device="cpu", run_dir=folders[0])
    store = {"HOTLAP_RANK_STORE": str(tmp_path / "store"), "WORLD_SIZE": "2"}
    runs = [
        started("--run-dir", str(folder), "--resume", "auto", RANK=str(rank), **store)
        for rank, folder in enumerate(folders)
    ]
    for code, said in map(ended, runs):
        assert code == 2
        assert "the checkpoint to resume from is none on rank 1" in said
