"""`resident` for data sets that augment in worker processes: later epochs need no workers."""

import gc
import os
import random
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, WeightedRandomSampler

from hotlap.attach.apply import PlanInProcess
from hotlap.errors import DIFFERS
from hotlap.feed.memory import behind_drawing_workers, item_parts, sent_parts
from hotlap.feed.memory.behind_drawing_workers import BehindDrawingWorkers
from hotlap.feed.memory.worker_streams import WorkerStreams
from hotlap.plan import Plan
from tests.feed.heard import Heard, Trained, trained

MAIN = os.getpid()
SAMPLES = 48
EPOCHS = 5
PERSISTENT = {"persistent_workers": True}
WAYS = pytest.mark.parametrize("way", [{}, PERSISTENT], ids=["started anew", "persistent"])


class Augmented(Dataset[Any]):
    """Rows with noise of all three generators."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return SAMPLES

    def decode(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index)) * self.scale

    def __getitem__(self, index: int) -> Any:
        row = self.decode(index)
        row += torch.rand(3) + random.random() + np.random.rand()
        return row, index % 3


@pytest.fixture(autouse=True)
def _as_if_it_were_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not depend on how fast this machine is just now."""
    monkeypatch.setattr(behind_drawing_workers, "_WORTH_IT", 1e9)
    monkeypatch.setattr(item_parts, "_WORTH_IT", 1e9)


def same(make: Callable[[], Any], options: dict[str, Any], **more: Any) -> Trained:
    """Return what was trained with `resident`, after comparing it with the plain run."""
    more = {"epochs": EPOCHS, **more}
    plain = trained(make(), options, plan={}, **more)
    assert len(set(plain.batches)) == len(plain.batches)
    found = trained(make(), options, plan={"resident": {}}, **more)
    assert found.batches == plain.batches
    return found


def weighted() -> Any:
    return WeightedRandomSampler([1.0 + n % 3 for n in range(SAMPLES)], SAMPLES, replacement=False)


@WAYS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seeded": 5},
        {"num_workers": 1, "prefetch_factor": 1},
        {"make_sampler": weighted},
        {"shuffle": False, "batch_size": 7},
    ],
    ids=["shuffled", "seeded", "one worker", "weighted", "last is smaller"],
)
def test_from_the_third_epoch_on_no_worker_is_needed(
    options: dict[str, Any], way: dict[str, Any]
) -> None:
    found = same(Augmented, {**options, **way})
    assert found.proof["state"] == "applied", found.proof
    assert "draws random numbers" in found.proof["why"]
    assert way or found.with_workers == [True, True, False, False, False]


@WAYS
def test_what_is_read_in_a_background_thread_is_left_to_the_workers(way: dict[str, Any]) -> None:
    found = same(Augmented, way, in_background=0)
    assert found.proof["state"] == "refused"
    assert found.proof["why"] == "samples are read in a background thread"
    assert way or found.with_workers == [True] * EPOCHS


@WAYS
def test_an_epoch_that_is_served_in_a_background_thread_is_told(way: dict[str, Any]) -> None:
    found = same(Augmented, way, in_background=3)
    assert found.proof["why"].startswith("samples are read in a background thread. This was")
    assert DIFFERS in found.proof["why"]


class InWorkers(Augmented):
    """What the training process must not read before the third epoch; a later one may."""

    def decode(self, index: int) -> torch.Tensor:
        if os.getpid() == MAIN:
            raise RuntimeError("read by the process that trains")
        return super().decode(index)


@WAYS
def test_runs_of_two_epochs_are_read_by_workers_alone(way: dict[str, Any]) -> None:
    found = same(InWorkers, way, epochs=2)
    assert found.proof["state"] == "no_effect"
    assert "third epoch" in found.proof["why"]


@WAYS
def test_epochs_that_the_script_breaks_off(way: dict[str, Any]) -> None:
    # The first, third, fifth and seventh; of the fourth and later ones workers read none.
    found = same(Augmented, way, until=3, epochs=8)
    assert found.proof["state"] == "applied", found.proof


def test_two_loaders_that_are_zipped_draw_in_the_same_order() -> None:
    def zipped(plan: PlanInProcess) -> list[str]:
        torch.manual_seed(3)
        loaders = [Heard(Augmented(), 4, shuffle=True, num_workers=2) for _ in range(2)]
        for loader in loaders:
            loader.plan = plan
        found = []
        for _ in range(4):
            found += [f"{both} {torch.rand(1)}" for both in zip(*loaders, strict=True)]
        last.append(loaders[0].with_workers[-1])
        return found

    last: list[bool] = []
    assert zipped(PlanInProcess(Plan({"resident": {}}))) == zipped(PlanInProcess(Plan({})))
    assert last == [False, True]


def test_of_a_subset_with_pictures_of_pillow_and_batches_of_dictionaries() -> None:
    found = same(lambda: Subset(OfPictures(), range(4, 44)), {})
    assert found.proof["state"] == "applied", found.proof


class OfPictures(Augmented):
    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        picture = Image.fromarray(np.full((4, 5), index, dtype=np.uint8))
        if random.random() < 0.5:
            picture = picture.rotate(90, expand=False)
        return {"picture": np.asarray(picture) + np.random.randn(4, 5), "index": index}


def test_what_the_script_changes_between_epochs_is_computed_again() -> None:
    def change(epoch: int, dataset: Any) -> None:
        dataset.scale = 1.0 + (epoch > 2)

    found = same(Augmented, {}, change=change, epochs=7)
    assert found.with_workers == [True, True, False, True, False, False, False]
    assert found.proof["state"] == "applied", found.proof


def test_persistent_workers_go_on_where_they_would_be_if_the_script_changes_the_data_set() -> None:
    def change(epoch: int, dataset: Any) -> None:
        dataset.scale = 1.0 + (epoch > 3)

    found = same(Augmented, PERSISTENT, change=change, epochs=7)
    assert found.proof["state"] == "refused"
    assert "which persistent workers do not see" in found.proof["why"]


def test_a_change_within_an_epoch_is_told() -> None:
    def run(plan: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        torch.manual_seed(3)
        dataset, made_by = Augmented(), PlanInProcess(Plan(plan))
        loader = Heard(dataset, 4, num_workers=2)
        loader.plan = made_by
        found = []
        for epoch in range(4):
            for number, batch in enumerate(loader):
                found.append(str(batch))
                dataset.scale = 1.0 + (epoch == 3 and number == 4)
        return found, (made_by.proofs() or [{}])[0]

    plain, _ = run({})
    found, proof = run({"resident": {}})
    assert DIFFERS in proof["why"] and "Augmented.scale changed during an epoch" in proof["why"]
    # Workers would have seen it an epoch later.
    assert found[:41] == plain[:41] and found != plain


@WAYS
def test_workers_read_again_where_they_are_faster(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behind_drawing_workers, "_LEAST_STEPS", 3)
    compare = BehindDrawingWorkers._compare_paces
    epochs = count()

    def slower_from_the_fifth_on(behind: BehindDrawingWorkers) -> None:
        if next(epochs) == 5:
            monkeypatch.setattr(behind_drawing_workers, "_WORTH_IT", 0.0)
        compare(behind)

    name = "_compare_paces"
    monkeypatch.setattr(BehindDrawingWorkers, name, slower_from_the_fifth_on)
    found = same(Augmented, way, epochs=7)
    assert "not faster" in found.proof["why"]
    assert way or found.with_workers == [True, True, False, False, False, True, True]


def test_what_is_slower_than_a_whole_step_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind_drawing_workers, "_WORTH_IT", 0.0)
    found = same(InWorkers, {})
    assert "us without the workers, and a whole step" in found.proof["why"]
    assert all(found.with_workers)


class Opens(Augmented):
    """Opens its file when it is read first."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.file = -1

    def decode(self, index: int) -> torch.Tensor:
        if self.file < 0:
            self.file = os.open(self.path, os.O_RDONLY)
        os.lseek(self.file, index, os.SEEK_SET)
        return torch.full((3,), float(os.read(self.file, 1)[0]))


class ByProcess(Augmented):
    """Gives other samples in the process that trains."""

    def decode(self, index: int) -> torch.Tensor:
        return super().decode(index) + (multiprocessing_depth() < 1)


def multiprocessing_depth() -> int:
    import multiprocessing

    return int(multiprocessing.current_process().name != "MainProcess")


class RestByProcess(Augmented):
    """Does so after its draws, where only a worker's own batch shows it."""

    def __getitem__(self, index: int) -> Any:
        row = self.decode(index)
        row += torch.rand(3)
        return row + (multiprocessing_depth() < 1), index


class DrawsFirst(Augmented):
    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(3)
        return self.decode(index) + noise, index


class DrawsForOne(Augmented):
    """One sample draws where the others do not."""

    def decode(self, index: int) -> torch.Tensor:
        return super().decode(index) + (torch.rand(()) if index == SAMPLES - 1 else 0)


@WAYS
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (DrawsFirst, "draws random numbers in its first statement"),
        (ByProcess, "is not the same"),
        (RestByProcess, "a batch is not the same without worker processes"),
        (DrawsForOne, "draws random numbers"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_cannot_be_made_without_workers_is_read_by_them(
    make: Any, why: str, way: dict[str, Any]
) -> None:
    found = same(make, {"shuffle": False, **way})
    assert found.proof["state"] == "refused" and why in found.proof["why"], found.proof
    assert way or all(found.with_workers)


@WAYS
def test_a_file_that_stays_open_is_read_by_workers(way: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(SAMPLES)))
    found = same(lambda: Opens(tmp_path / "file"), way)
    assert f"leaves '{tmp_path / 'file'}' open" in found.proof["why"]
    assert way or all(found.with_workers)


def test_a_torch_that_seeds_its_workers_in_another_way_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = WorkerStreams.seeded(1, 1).states[0]
    monkeypatch.setattr(sent_parts, "seeded_state", lambda *_: other)
    found = same(Augmented, {})
    assert "seeds its workers in another way" in found.proof["why"]


@WAYS
def test_a_note_that_cannot_be_read_leaves_the_batches_of_the_workers(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(noted: Any) -> Any:
        raise OSError(f"{type(noted).__name__} cannot be read")

    monkeypatch.setattr(sent_parts.Noted, "note", fail)
    found = same(Augmented, way)
    assert "Noted cannot be read" in found.proof["why"]


@WAYS
@pytest.mark.parametrize("where", ["copy_of", "inner_indices", "in_child", "Sender"])
def test_whatever_fails_in_here_leaves_the_batches_of_the_workers(
    where: str, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise OSError(f"{where} has failed")

    monkeypatch.setattr(behind_drawing_workers, where, fail)
    found = same(Augmented, way)
    assert f"{where} has failed" in found.proof["why"]
    assert way or all(found.with_workers)


class RaisesOnce(Augmented):
    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index == 30 and random.random() < 0.6:
            raise LookupError(index)
        return sample


@WAYS
def test_errors_of_the_data_set_come_where_they_came(way: dict[str, Any]) -> None:
    def run(plan: dict[str, Any]) -> list[str]:
        torch.manual_seed(3)
        loader = Heard(RaisesOnce(), 4, num_workers=2, **way)
        loader.plan = PlanInProcess(Plan(plan))
        found = []
        for _ in range(EPOCHS):
            iterator: Iterator[Any] = iter(loader)
            while True:
                try:
                    found.append(str(next(iterator)))
                except StopIteration:
                    break
                except LookupError:
                    found.append("raised")
        assert "raised" in found
        return found

    assert run({"resident": {}}) == run({})


def test_in_a_trial_no_worker_is_needed_from_the_start() -> None:
    found = same(Augmented, {}, fill_ahead=True)
    assert not any(found.with_workers)
    assert found.proof["state"] == "applied", found.proof


def test_the_loader_and_its_workers_go_when_the_script_drops_them() -> None:
    loader = Heard(Augmented(), 4, num_workers=2, persistent_workers=True)
    loader.plan = PlanInProcess(Plan({"resident": {}}))
    for _ in range(4):
        for _ in loader:
            pass
    gc.disable()
    try:
        gone = weakref.ref(loader)
        workers = list(loader._iterator._workers)  # pyright: ignore[reportAttributeAccessIssue]
        del loader
        assert gone() is None
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()
