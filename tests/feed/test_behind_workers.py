"""`resident` behind worker processes: what they read in one epoch serves the later ones."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler, WeightedRandomSampler, get_worker_info

from hotlap.attach.apply import PlanInProcess
from hotlap.feed.memory import resident, workers_rows
from hotlap.feed.purity.first_times import FirstTimes
from hotlap.plan import Plan
from tests.feed.heard import EPOCHS, SAMPLES, Heard, Rows, Trained, trained

MAIN = os.getpid()


class InWorkers(Rows):
    """Rows that the training process must not read."""

    def __getitem__(self, index: int) -> Any:
        assert os.getpid() != MAIN
        return super().__getitem__(index)


def same(make: Callable[[], Any], options: dict[str, Any], **more: Any) -> Trained:
    """Return what was trained with `resident`, after comparing it with the plain run."""
    plain = trained(make(), options, plan={}, **more)
    found = trained(make(), options, plan={"resident": {}}, **more)
    assert found.batches == plain.batches
    return found


def weighted() -> Any:
    return WeightedRandomSampler([1.0 + n % 3 for n in range(SAMPLES)], SAMPLES, replacement=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seeded": 5},
        {"num_workers": 1, "prefetch_factor": 4},
        {"make_sampler": weighted},
        {"shuffle": False},
        {"timeout": 30},
        {"batch_size": 7},
    ],
    ids=["shuffled", "seeded", "one worker", "weighted", "in order", "timeout", "last is smaller"],
)
def test_later_epochs_need_no_workers_and_give_the_same_batches_and_draws(
    options: dict[str, Any],
) -> None:
    found = same(Rows, options)
    assert found.with_workers == [True, False, False, False]
    assert found.proof["state"] == "applied", found.proof


def test_what_is_read_in_a_background_thread_is_left_to_the_workers() -> None:
    found = same(Rows, {}, in_background=0)
    assert found.with_workers == [True, True, True, True]
    assert found.proof["why"] == "samples are read in a background thread"


def test_persistent_workers_wait_while_memory_serves() -> None:
    found = same(InWorkers, {"persistent_workers": True})
    assert found.proof["state"] == "applied", found.proof
    assert "30 batches served" in found.proof["why"] and "10 read" in found.proof["why"]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
def test_epochs_that_the_script_breaks_off(options: dict[str, Any]) -> None:
    found = same(InWorkers, options, until=3)
    assert found.proof["state"] == "applied", found.proof
    assert "14 batches served" in found.proof["why"]
    assert options or found.with_workers == [True, True, False, False]


def test_a_last_batch_that_is_dropped_comes_in_another_epoch() -> None:
    found = same(Rows, {"batch_size": 9, "drop_last": True})
    assert found.with_workers[0] and not found.with_workers[-1]


def test_everything_is_there_at_once_in_a_trial_that_wants_it() -> None:
    found = same(Rows, {}, fill_ahead=True)
    assert found.with_workers == [False] * EPOCHS
    assert found.proof["state"] == "applied", found.proof


def test_two_loaders_that_are_zipped_draw_in_the_same_order() -> None:
    def zipped(plan: dict[str, Any]) -> list[str]:
        torch.manual_seed(3)
        made = PlanInProcess(Plan(plan))
        one, other = (Heard(Rows(), 4, shuffle=True, num_workers=n) for n in (1, 2))
        one.plan = other.plan = made
        return [f"{both} {torch.rand(1)}" for _ in range(3) for both in zip(one, other)]  # noqa: B905

    assert zipped({"resident": {}}) == zipped({})


def test_a_data_set_that_changes_is_read_by_workers_again() -> None:
    def change(epoch: int, dataset: Any) -> None:
        dataset.scale = 2.0 if epoch >= 2 else 1.0

    found = same(Rows, {}, change=change)
    assert found.with_workers == [True, False, True, False]


class Opened(Rows):
    """Opens its file when it is first read, as data sets of one large file do."""

    path: Path

    def __init__(self) -> None:
        super().__init__()
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(index)
        return torch.tensor(self.file.read(1)[0])


def test_this_process_opens_no_file_that_workers_would_share(tmp_path: Path) -> None:
    Opened.path = tmp_path / "data"
    Opened.path.write_bytes(bytes(range(SAMPLES)))
    dataset = Opened()
    found = trained(dataset, {}, plan={"resident": {}})
    assert found.batches == trained(Opened(), {}, plan={}).batches
    assert found.proof["state"] == "applied", found.proof
    assert dataset.file is None


class Draws(Rows):
    """Draws for one sample, where only its worker can see that."""

    def __init__(self, when: int) -> None:
        super().__init__()
        self.when, self.draw = when, {"it": torch.rand}

    def __getitem__(self, index: int) -> Any:
        more = self.draw["it"](1) if index == self.when else torch.zeros(1)
        return super().__getitem__(index)[0] + more, 0


class Counts(Rows):
    """Gives other samples as it is read more often."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor(self.reads + index)


class Asks(Rows):
    """Gives samples that hang on the worker."""

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        return torch.tensor(index + (100 * worker.id if worker is not None else 0))


class Restless(Sampler[int]):
    """Draws as it goes."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield int(torch.randint(SAMPLES, ()))


def replaced() -> Any:
    return WeightedRandomSampler([1.0] * (SAMPLES - 1) + [0.0], SAMPLES)


def listed(samples: list[Any]) -> Any:
    return torch.stack([sample[0] for sample in samples])


def init(worker: int) -> None:
    del worker


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (lambda: Draws(0), {"shuffle": False}, "random numbers in its first statement"),
        (lambda: Draws(37), {}, "draws from torch"),
        (Counts, {}, "reading a sample changes Counts.reads"),
        (Asks, {}, "get_worker_info"),
        (Rows, {"worker_init_fn": init}, "worker_init_fn"),
        (Rows, {"collate_fn": listed}, "collate_fn of its own"),
        (Rows, {"make_sampler": Restless}, "the sampler draws from"),
    ],
)
def test_who_might_get_other_samples_is_refused_and_gets_its_own(
    make: Callable[[], Any], options: dict[str, Any], why: str
) -> None:
    found = same(make, options)
    assert found.proof["state"] == "refused", found.proof
    assert why in found.proof["why"]
    assert all(found.with_workers)


def test_a_draw_of_one_sample_is_heard_in_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_rows, "REREAD_AT_FIRST", 4)
    monkeypatch.setattr(resident, "REREAD_PER_EPOCH", 4)
    found = same(lambda: Draws(37), {"shuffle": False})
    assert "in a worker" in found.proof["why"]


def test_batches_that_come_in_any_order_are_not_kept() -> None:
    found = trained(Rows(), {"in_order": False}, plan={"resident": {}})
    assert "in_order=False" in found.proof["why"]


class Shuffled(Sampler[int]):
    """Shuffles as its iterator is made, which workers make twice."""

    def __init__(self) -> None:
        self.order = list(range(SAMPLES))

    def __len__(self) -> int:
        return SAMPLES // 10

    def __iter__(self) -> Iterator[Any]:
        random.shuffle(self.order)
        return iter([self.order[start : start + 10] for start in range(0, SAMPLES, 10)])


def test_a_sampler_that_shuffles_as_its_epoch_starts() -> None:
    def batches(plan: dict[str, Any]) -> list[str]:
        random.seed(3)
        loader = Heard(Rows(), batch_sampler=Shuffled(), num_workers=2)
        loader.plan = PlanInProcess(Plan(plan))
        return [f"{batch} {random.random()}" for _ in range(EPOCHS) for batch in loader]

    assert batches({"resident": {}}) == batches({})


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
def test_an_epoch_that_is_not_asked_for_its_end_draws_as_much(options: dict[str, Any]) -> None:
    def batches(plan: dict[str, Any]) -> list[str]:
        drawn = torch.Generator().manual_seed(5)
        loader = Heard(Rows(), 4, shuffle=True, generator=drawn, num_workers=2, **options)
        loader.plan = PlanInProcess(Plan(plan))
        every = [
            batch
            for count in (10, 8, 10, 8)
            for _, batch in zip(range(count), loader)  # noqa: B905
        ]
        return [*map(str, every), str(drawn.get_state().tolist())]

    assert batches({"resident": {}}) == batches({})


def test_what_the_loop_changes_within_an_epoch_is_seen_in_the_next() -> None:
    def batches(plan: dict[str, Any]) -> list[str]:
        torch.manual_seed(3)
        dataset = InWorkers()
        loader = Heard(dataset, 4, shuffle=True, num_workers=2)
        loader.plan = PlanInProcess(Plan(plan))
        seen = []
        for epoch in range(EPOCHS):
            for number, batch in enumerate(loader):
                seen.append(str(batch))
                if epoch == 1 and number == 4:
                    dataset.scale = 3.0
        return seen

    assert batches({"resident": {}}) == batches({})


class Moded(Rows):
    """Gives what its worker's function has chosen."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index * self.scale)


def choose(worker: int) -> None:
    del worker
    info = get_worker_info()
    assert info is not None
    info.dataset.scale = 7.0


@pytest.mark.parametrize(
    "options",
    [
        {"worker_init_fn": choose, "num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 0},
    ],
    ids=["worker_init_fn", "persistent", "without workers"],
)
def test_a_later_loader_that_differs_has_its_workers(options: dict[str, Any]) -> None:
    def batches(plan: dict[str, Any]) -> list[str]:
        torch.manual_seed(3)
        dataset = Moded()
        made = PlanInProcess(Plan(plan))
        loader, later = Heard(dataset, 4, num_workers=2), Heard(dataset, 4, shuffle=True, **options)
        loader.plan = later.plan = made
        return [f"{b} {torch.rand(1)}" for _ in range(3) for one in (loader, later) for b in one]

    assert batches({"resident": {}}) == batches({})


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_that_are_started_in_another_way(context: str) -> None:
    found = same(Rows, {"multiprocessing_context": context})
    assert found.proof["state"] == "applied", found.proof


def test_samples_that_are_never_asked_for_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_rows, "_MOST_PASSES", 2)
    found = same(Rows, {"make_sampler": replaced})
    assert "does not ask for every sample within 2 passes" in found.proof["why"]
    assert all(found.with_workers)


def test_where_memory_is_no_faster_workers_are_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resident, "_WORTH_IT", 0.0)
    monkeypatch.setattr(FirstTimes, "ENOUGH", 5)
    found = same(InWorkers, {})
    assert found.with_workers == [True, False, True, True]
    assert "waiting for the workers takes" in found.proof["why"]


def test_a_sample_that_is_another_when_read_again_is_found_before_it_is_served(
    tmp_path: Path,
) -> None:
    path = tmp_path / "offset"

    class Shifted(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor(index + int(path.read_text()))

    def change(epoch: int, dataset: Any) -> None:
        del dataset
        path.write_text("100" if epoch else "0")

    found = same(Shifted, {}, change=change)
    assert found.proof["state"] == "refused", found.proof
    assert "not the same when read again" in found.proof["why"]
    assert all(found.with_workers)


class Writes(Rows):
    def __getitem__(self, index: int) -> Any:
        with open("read.log", "a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


def test_what_writes_a_file_is_not_read_to_find_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = same(Writes, {})
    assert "may write to a file" in found.proof["why"]
    lines = (tmp_path / "read.log").read_text().splitlines()
    # Twice, with `resident` and without.
    assert len(lines) == 2 * EPOCHS * SAMPLES
