"""The engine trains on iterable data sets, of a length that may be unknown, as on any other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import hotlap
from hotlap.engine.export.exporting import export
from hotlap.plan import Plan
from hotlap.report.training import opening_line
from tests.engine.test_resume import state
from tests.feed.numbers import Noisy

COUNT, BATCH, EPOCHS = 37, 8, 3
PER_EPOCH = 5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": network,
        "loss": loss,
        "data": Noisy(COUNT),
        "optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
        "batch_size": BATCH // 2,
        "accumulate": 2,
        "epochs": EPOCHS,
        "schedule": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        "schedule_per": "epoch",
        "shuffle_buffer": 20,
    }
    return hotlap.Task(**{**given, **options})


def weights(trained: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.arange(3.0).add(index).sin(), index % 2


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows = Rows()
        return (rows[n] for n in range(COUNT))


class Plain:
    """Of no class of torch's."""

    def __iter__(self) -> Iterator[Any]:
        return iter(Streamed())


@pytest.mark.parametrize("kind", [Streamed, Plain])
def test_it_learns_what_the_same_samples_teach_as_a_map(kind: Any) -> None:
    options = {"shuffle": False, "held_out": Rows()}
    expected = hotlap.train(task(data=Rows(), **options))
    done = hotlap.train(task(data=kind(), **{**options, "held_out": kind()}))
    assert same(weights(done), weights(expected))
    assert done.steps == expected.steps == EPOCHS * PER_EPOCH
    for ours, theirs in zip(done.epochs, expected.epochs, strict=True):
        assert (ours.steps, ours.loss, ours.held_out) == (
            theirs.steps,
            theirs.loss,
            theirs.held_out,
        )
    assert not same(weights(hotlap.train(task(data=kind()))), weights(expected))


def test_every_step_knows_where_it_is_though_nobody_knows_the_length() -> None:
    given = task()
    assert given.total_steps is None and given.steps_per_epoch is None
    seen = [(s.number, s.epoch, s.in_epoch, s.samples, s.ends_epoch) for s in hotlap.steps(given)]
    sizes = [8, 8, 8, 8, 5]
    assert seen == [
        (epoch * PER_EPOCH + k, epoch + 1, k, sizes[k - 1], k == PER_EPOCH)
        for epoch in range(EPOCHS)
        for k in range(1, PER_EPOCH + 1)
    ]
    done = hotlap.train(given)
    assert [epoch.left_s > 0 for epoch in done.epochs] == [True, True, False]
    assert "3 epochs in steps of 8 samples in 2 micro-batches" in opening_line(given)
    whole_steps = [s.ends_epoch for s in hotlap.steps(task(drop_last=True))]
    assert whole_steps == [False, False, False, True] * EPOCHS


def test_schedules_step_once_an_epoch() -> None:
    *_, last = hotlap.steps(task())
    assert last.built.scheduler.last_epoch == EPOCHS


def test_a_schedule_is_held_against_what_is_known_of_the_length() -> None:
    def cosine(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)

    with pytest.raises(hotlap.UsageError, match="takes 9 epochs, and the run has only 3 epochs"):
        hotlap.train(task(schedule=cosine))
    with pytest.raises(hotlap.UsageError, match="takes 9 steps, and the run has only 7 steps"):
        hotlap.train(task(schedule=cosine, schedule_per="step", epochs=None, steps=7))
    hotlap.train(task(schedule=cosine, schedule_per="step"))
    hotlap.train(task(schedule=cosine, epochs=None, steps=7))


def test_a_number_of_steps_ends_the_run_in_the_middle_of_an_epoch() -> None:
    given = task(epochs=None, steps=7)
    assert given.total_steps == 7
    assert opening_line(given) == "7 steps of 8 samples in 2 micro-batches"
    assert [epoch.steps for epoch in hotlap.train(given).epochs] == [5, 2]


def test_a_length_that_the_stream_says_is_used() -> None:
    class Sized(Noisy):
        def __len__(self) -> int:
            return self.count

    given = task(data=Sized(COUNT))
    assert (given.steps_per_epoch, given.total_steps) == (PER_EPOCH, EPOCHS * PER_EPOCH)
    assert same(weights(hotlap.train(given)), weights(hotlap.train(task())))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, str]]:
    """A run that kept the checkpoint of every step."""
    run_dir = tmp_path_factory.mktemp("stopped")
    hotlap.train(task(), Plan(), run_dir=run_dir, save_every="1steps", keep=EPOCHS * PER_EPOCH)
    return run_dir, state(run_dir)


@pytest.mark.parametrize("done", range(1, EPOCHS * PER_EPOCH))
def test_resumed_after_any_step_it_ends_with_the_same_bits(
    done: int, stopped: tuple[Path, tuple[str, str]], tmp_path: Path
) -> None:
    run_dir, expected = stopped
    saved = str(run_dir / "ckpt" / f"step-{done:012d}")
    hotlap.train(task(), Plan(), run_dir=tmp_path, resume=saved)
    assert state(tmp_path) == expected


def test_resumed_with_workers_too_and_seen_where_it_is_not(
    stopped: tuple[Path, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, expected = stopped
    saved = str(run_dir / "ckpt" / f"step-{7:012d}")
    plan = Plan({"workers": {"count": 2}})
    done = hotlap.train(task(), plan, run_dir=tmp_path / "workers", resume=saved)
    assert done.techniques[0]["state"] == "applied"
    assert state(tmp_path / "workers") == expected
    # A feed that begins its epoch anew, as most do.
    from hotlap.feed.sources.stream import Stream

    epoch = Stream.epoch
    monkeypatch.setattr(Stream, "epoch", lambda self, number, first=0: epoch(self, number))
    hotlap.train(task(), Plan(), run_dir=tmp_path / "anew", resume=saved)
    assert state(tmp_path / "anew") != expected


def test_a_finished_run_is_left_as_it_is_and_one_beyond_the_task_or_of_another_buffer_refused(
    stopped: tuple[Path, tuple[str, str]],
) -> None:
    run_dir, _ = stopped
    assert hotlap.train(task(), resume=str(run_dir)).epochs == ()
    with pytest.raises(hotlap.UsageError, match="after 3 epochs, but the task has only 2"):
        hotlap.train(task(epochs=2), resume=str(run_dir))
    with pytest.raises(hotlap.UsageError, match="shuffle_buffer was 20, now it is 30"):
        hotlap.train(task(shuffle_buffer=30, epochs=9), resume=str(run_dir))


def test_techniques_say_what_they_make_of_a_stream(tmp_path: Path) -> None:
    class FromFile(Noisy):
        def __init__(self) -> None:
            super().__init__(COUNT)
            self.file = (tmp_path / "text").open("w+")

    (tmp_path / "text").write_text("")
    states = {}
    dataset = FromFile()
    for name, data in (("noisy", Noisy(COUNT)), ("file", dataset)):
        for plan in ({"resident": {}}, {"workers": {"count": 1}}):
            (row,) = hotlap.train(task(data=data), Plan(plan)).techniques
            states[name, row["name"]] = (row["state"], row["why"])
    dataset.file.close()
    assert states["noisy", "resident"][0] == "refused"
    assert "is not a map-style dataset" in states["noisy", "resident"][1]
    assert states["noisy", "workers"] == ("applied", "1 worker processes started, 1 requested")
    assert states["file", "workers"][0] == "refused"
    assert "FromFile.file" in states["file", "workers"][1]


class Endless(Noisy):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.zeros(3), 0


class Empty(Plain):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": (n for n in range(3))}, "data is a generator, an iterator, .* only once"),
        ({"data": zip([1], [2], strict=True)}, "data is a zip, an iterator"),
        ({"held_out": iter([1])}, "held_out is a list_iterator"),
        ({"data": 3}, "data is a int. Expected: .*`__iter__`"),
        ({"data": lambda: iter([1])}, "data is a function"),
        ({"data": Empty()}, "data is empty"),
        ({"held_out": Empty()}, "held_out is empty"),
        ({"data": Endless(3)}, "data is Endless, whose `__iter__` never ends.*steps=N"),
        ({"drop_last": True, "accumulate": 20}, "drop_last=True drops"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
    ],
)
def test_a_task_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hotlap.UsageError, match=words):
        hotlap.train(task(**options))


def test_an_endless_stream_is_trained_for_a_number_of_steps() -> None:
    assert hotlap.train(task(data=Endless(3), epochs=None, steps=9)).steps == 9


def test_a_model_is_exported_with_samples_of_the_stream(tmp_path: Path) -> None:
    hotlap.train(task(epochs=1), run_dir=tmp_path / "run")
    done = export(task(epochs=1), tmp_path / "run", tmp_path / "model.pt2")
    assert done.path.stat().st_size > 0
