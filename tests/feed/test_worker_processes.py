"""Worker processes outlive an epoch, and nobody can tell from the batches."""

import os
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import hotlap
from hotlap.feed.purity import reach
from hotlap.feed.sources.source import Source


class Telling(Dataset):
    """Tells which process read a sample, beside a number that is drawn for it."""

    def __init__(self) -> None:
        self.added = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index + self.added, torch.rand(()), os.getpid()


def epoch(source: Source, number: int, first: int = 0) -> tuple[list[Any], set[int]]:
    batches = [batch for step in source.epoch(number, first) for _, batch in step]
    numbers = [(index.tolist(), drawn.tolist()) for index, drawn, _ in batches]
    return numbers, {pid for _, _, pids in batches for pid in pids.tolist()}


def source(workers: int, epochs: int | None = None, **options: Any) -> Source:
    made = Source(Telling(), 4, epochs=epochs, **options)
    made.num_workers = workers
    return made


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_same_processes_read_all_epochs_and_end_with_the_last() -> None:
    lasting, plain = source(2, epochs=3), source(0)
    seen = [epoch(lasting, number) for number in range(3)]
    assert seen[0][1] == seen[1][1] == seen[2][1]
    assert os.getpid() not in seen[0][1]
    assert [numbers for numbers, _ in seen] == [epoch(plain, number)[0] for number in range(3)]
    assert not any(is_running(pid) for pid in seen[0][1])


def test_without_a_number_of_epochs_they_end_with_each() -> None:
    each = source(1)
    assert epoch(each, 0)[1].isdisjoint(epoch(each, 1)[1])


def test_an_epoch_that_is_left_or_entered_in_the_middle_starts_them_anew() -> None:
    lasting, plain = source(1, epochs=5), source(0)
    begun = lasting.epoch(0)
    next(begun)
    begun.close()
    assert epoch(lasting, 0)[0] == epoch(plain, 0)[0]
    assert epoch(lasting, 3, first=2)[0] == epoch(plain, 3, first=2)[0]
    assert epoch(lasting, 1)[0] == epoch(plain, 1)[0]


def test_a_data_set_that_was_changed_between_two_epochs_is_read_as_it_is() -> None:
    lasting = source(1, epochs=3)
    _, old = epoch(lasting, 0)
    lasting.dataset.added = 100
    after, new = epoch(lasting, 1)
    assert all(index >= 100 for indices, _ in after for index in indices)
    assert old.isdisjoint(new)


def test_a_data_set_that_cannot_be_looked_at_gets_new_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(dataset: Any) -> Any:
        raise RuntimeError("an object of the user's own")

    lasting, plain = source(1, epochs=3), source(0)
    seen = [epoch(lasting, 0)]
    monkeypatch.setattr(reach, "Reach", failing)
    seen += [epoch(lasting, number) for number in (1, 2)]
    assert [numbers for numbers, _ in seen] == [epoch(plain, number)[0] for number in range(3)]
    assert len(set.union(*[pids for _, pids in seen])) == 3


def test_a_run_leaves_no_process_behind() -> None:
    pids: set[int] = set()

    def loss(model: Any, batch: Any) -> torch.Tensor:
        pids.update(batch[2].tolist())
        return model(batch[1].unsqueeze(1)).square().mean()

    task = hotlap.Task(
        model=lambda: torch.nn.Linear(1, 1),
        loss=loss,
        data=Telling(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=4,
        steps=8,
    )
    hotlap.train(task, hotlap.Plan({"workers": {"count": 1}}))
    assert len(pids) == 1
    assert not any(is_running(pid) for pid in pids)
