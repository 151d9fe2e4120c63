"""What a task's functions do beside their work, such as writing to a batch, changes no run."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Dataset, TensorDataset

import hotlap
from hotlap.engine.build import build
from hotlap.errors import UsageError
from hotlap.track.run_file import RunInfo
from hotlap.track.runs import read_run

F = nn.functional


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (32,), generator=generator)
    return TensorDataset(torch.randn(32, 4, generator=generator) * 255, labels)


class Named(Dataset[Any]):
    """The same samples, in dictionaries."""

    def __init__(self) -> None:
        self.rows = data()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return dict(zip(("inputs", "labels"), self.rows[index], strict=True))


def plain(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0] / 255), batch[1])


def writing(model: Any, batch: Any) -> Any:
    inputs, labels = batch
    inputs.div_(255)
    return F.cross_entropy(model(inputs), labels)


def taking(model: Any, batch: Any) -> Any:
    labels = batch.pop("labels")
    return F.cross_entropy(model(batch["inputs"] / 255), labels)


def weighted(model: Any, batch: Any) -> Any:
    batch[0].div_(255)
    return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([0.1, 1.0, 9.0]))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": network,
        "loss": plain,
        "data": data(),
        "optimizer": sgd,
        "batch_size": 8,
        "epochs": 3,
    }
    return hotlap.Task(**{**given, **options})


def weights(report: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in report.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def not_checked(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "is a mean is not checked" in each]


@pytest.mark.parametrize(("loss", "samples"), [(writing, data()), (taking, Named())])
@pytest.mark.parametrize("split", [{"accumulate": 2, "batch_size": 4}, {}], ids=["split", "whole"])
def test_a_loss_may_write_into_its_batch(
    loss: Any, samples: Any, split: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hotlap")
    found = hotlap.train(task(loss=loss, data=samples, **split))
    assert same(weights(found), weights(hotlap.train(task(**split))))
    assert not not_checked(caplog)


def test_a_loss_that_writes_and_is_no_mean_is_refused_where_a_step_is_split() -> None:
    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        hotlap.train(task(loss=weighted, accumulate=2, batch_size=4))


@pytest.mark.parametrize(("measure", "samples"), [(writing, data()), (taking, Named())])
def test_each_measure_gets_the_batch_as_it_was_read(measure: Any, samples: Any) -> None:
    options = {"data": samples, "held_out": samples, "metrics": {"again": measure}, "epochs": 1}
    found = hotlap.train(task(loss=measure, **options)).held_out
    expected = hotlap.train(task(held_out=data(), epochs=1)).held_out["loss"]
    assert found == {"loss": expected, "again": expected}


class Frozen(nn.Module):
    """Keeps its statistics, as many scripts have it: its `train` returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def train(self, mode: bool = True) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().train(mode)
        self.norm.eval()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(values))


def test_a_model_whose_train_returns_nothing_is_trained_in_the_modes_that_it_chooses() -> None:
    modes: list[tuple[bool, bool]] = []

    def loss(model: Any, batch: Any) -> Any:
        modes.append((model.training, model.norm.training))
        return plain(model, batch)

    found = hotlap.train(task(model=Frozen, loss=loss, held_out=data(), epochs=1))
    assert isinstance(found.model, Frozen) and not found.model.training
    assert modes.count((True, False)) == 4 and modes.count((False, False)) > 0


class MeasuredBeforehand:
    """Steps with what it is given, as schedules of other packages do."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, epoch: int, metric: float | None = None) -> None:
        raise AssertionError("it is not called")

    def state_dict(self) -> dict[str, Any]:
        return {}


class Lenient(MeasuredBeforehand):
    def step(self, epoch: int = 0, metric: float | None = None, *rest: Any, **more: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {
                "schedule": ReduceLROnPlateau,
                "held_out": data(),
                "evaluate": lambda m, b: {"right": (1, 1)},
            },
            r"a `loss` from evaluate\(\)",
        ),
        ({"schedule": MeasuredBeforehand}, "whose `step` needs the argument `epoch`"),
    ],
)
def test_a_schedule_that_cannot_take_its_step_is_refused_before_the_first_step(
    options: Any, words: str
) -> None:
    taken: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        taken.append(1)
        return plain(model, batch)

    with pytest.raises(UsageError, match=words):
        hotlap.train(task(loss=loss, schedule_per="epoch", **options))
    assert not taken


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": Lenient},
        {"schedule": ReduceLROnPlateau},
        {"schedule": ReduceLROnPlateau, "held_out": data()},
    ],
)
def test_other_schedules_of_epochs_are_taken(options: Any) -> None:
    assert hotlap.train(task(schedule_per="epoch", **options)).steps == 12


@pytest.mark.parametrize("schedule", [None, lambda o: ReduceLROnPlateau(o, patience=0)])
def test_what_was_trained_outlives_a_report_that_fails(schedule: Any, tmp_path: Path) -> None:
    whole = task(schedule=schedule, schedule_per="epoch", held_out=data())

    def progress(epoch: Any) -> None:
        if epoch.epoch == 2:
            raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens") as caught:
        hotlap.train(whole, run_dir=tmp_path, save_every="99epochs", progress=progress)
    assert any("progress() raised this" in note for note in caught.value.__notes__)
    assert [path.name for path in (tmp_path / "ckpt").glob("step-*")] == ["step-000000000008"]
    again = hotlap.train(whole, run_dir=tmp_path, resume="auto")
    assert same(weights(again), weights(hotlap.train(whole)))


def train_another(*_: Any) -> None:
    hotlap.train(task(epochs=1, seed=7))


def draw(*_: Any) -> None:
    torch.rand(3)


@pytest.mark.parametrize("does", [train_another, draw])
@pytest.mark.parametrize("function", ["progress", "saved"])
def test_what_a_callers_function_draws_or_trains_changes_nothing(
    function: str, does: Callable[..., None], tmp_path: Path
) -> None:
    options: Any = {function: does}
    found = hotlap.train(task(), run_dir=tmp_path / "with", **options)
    expected = hotlap.train(task(), run_dir=tmp_path / "without")
    assert same(weights(found), weights(expected))
    assert [each.loss for each in found.epochs] == [each.loss for each in expected.epochs]


def decaying(model: nn.Module) -> torch.optim.Optimizer:
    """Raises the weight decay in every step."""
    optimizer = sgd(model)

    def change(*_: Any) -> None:
        optimizer.param_groups[0]["weight_decay"] += 0.01

    optimizer.register_step_pre_hook(change)
    return optimizer


def test_a_run_whose_hyperparameters_a_hook_changes_is_resumed(tmp_path: Path) -> None:
    whole = task(optimizer=decaying)
    hotlap.train(whole, run_dir=tmp_path, until=6)
    again = hotlap.train(whole, run_dir=tmp_path, resume="auto")
    assert again.steps == 12
    assert same(weights(again), weights(hotlap.train(whole)))
    # The recipe has to say the same nevertheless.
    other = replace(whole, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    with pytest.raises(UsageError, match="weight_decay"):
        hotlap.train(other, run_dir=tmp_path, resume="auto")


class Sequences(Dataset[Any]):
    lengths = tuple(1 + 3 * number % 8 for number in range(24))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.lengths[index], 4, generator=generator), index % 3


def of_rows(model: Any, batch: Any) -> Any:
    rows, labels, real = batch
    scores = (model(rows) * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
    return F.cross_entropy(scores, labels)


def in_training_only(model: Any, batch: Any) -> Any:
    if not model.training:
        raise ValueError("no loss is taken in this mode")
    return of_rows(model, batch)


def penalized(model: Any, batch: Any) -> Any:
    rows = batch[0].requires_grad_()
    value = of_rows(model, batch)
    (slope,) = torch.autograd.grad(value, rows, create_graph=True)
    return value + slope.square().mean()


def of_tokens(model: Any, batch: Any) -> Any:
    rows, labels, real = batch
    rows.mul_(2)
    targets = labels[:, None].expand(rows.shape[:2]).masked_fill(~real, -100)
    return F.cross_entropy(model(rows).transpose(1, 2), targets)


def of_lengths(loss: Any) -> hotlap.Task:
    return task(
        loss=loss,
        data=Sequences(),
        lengths=Sequences.lengths,
        collate=hotlap.pad({0: 0.0}, mask=True),
        batch_size=4,
        accumulate=2,
        epochs=1,
    )


@pytest.mark.parametrize(
    ("loss", "words"), [(in_training_only, "no loss is taken"), (penalized, "require")]
)
def test_a_loss_that_evaluation_does_not_take_is_not_checked_with_lengths(
    loss: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hotlap")
    build(of_lengths(loss), hotlap.Plan())
    (told,) = not_checked(caplog)
    assert words in told


def test_a_mean_over_tokens_is_refused_with_lengths_although_it_writes() -> None:
    with pytest.raises(UsageError, match="the loss is not a mean over samples"):
        build(of_lengths(of_tokens), hotlap.Plan())

    def short(model: Any, batch: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    # What is raised by more than the mode is not passed over.
    with pytest.raises(torch.OutOfMemoryError):
        build(of_lengths(short), hotlap.Plan())


def stopped_in_its_last_evaluation(folder: Path) -> hotlap.Task:
    """Train to the last step, and stop where the measures of that are taken."""
    trained: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        trained.append(model.training)
        return plain(model, batch)

    found = task(loss=loss, held_out=data(), epochs=2)
    stopped = hotlap.train(found, run_dir=folder, stop=lambda: sum(trained) == 8)
    assert stopped.is_stopped and stopped.steps == 8
    return found


def evaluated(folder: Path) -> list[int]:
    return [each.step for each in read_run(folder).records if each.kind == "evaluation"]


def test_a_run_that_was_stopped_in_its_last_evaluation_ends_as_finished(tmp_path: Path) -> None:
    found = stopped_in_its_last_evaluation(tmp_path)
    info = RunInfo.read(tmp_path)
    assert info is not None and info.state == "stopped" and evaluated(tmp_path) == [4]
    again = hotlap.train(found, run_dir=tmp_path, resume="auto")
    info = RunInfo.read(tmp_path)
    assert info is not None and info.state == "finished" and evaluated(tmp_path) == [4, 8]
    assert read_run(tmp_path).last()["evaluation/loss"] == again.held_out["loss"]
    # Of one that has finished nothing is recorded any more.
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    hotlap.train(found, run_dir=tmp_path, resume="auto")
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_what_was_recorded_before_a_run_was_killed_is_not_recorded_twice(tmp_path: Path) -> None:
    found = task(held_out=data(), epochs=1)
    hotlap.train(found, run_dir=tmp_path)
    path = tmp_path / "run.json"
    gone = {"pid": os.getpid(), "started": 0, "host": os.uname().nodename}
    said = json.loads(path.read_text()) | {"state": "running", "process": gone}
    path.write_text(json.dumps(said))
    info = RunInfo.read(tmp_path)
    assert info is not None and info.state == "killed"
    hotlap.train(found, run_dir=tmp_path, resume="auto")
    info = RunInfo.read(tmp_path)
    assert info is not None and info.state == "finished" and evaluated(tmp_path) == [4]
