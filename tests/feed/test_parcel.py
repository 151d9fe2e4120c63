"""What a worker process sends as bytes arrives as the batch that it made."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from hotlap.feed.memory.parcel import MOST_BYTES, Ear, Parcels, parcel

Pair = namedtuple("Pair", ["x", "y"])

BATCHES = {
    "list": [torch.arange(6.0).view(2, 3), torch.tensor([1, 2])],
    "dict in tuple": ({"a": torch.rand(3, 2, dtype=torch.float64)}, torch.tensor([True, False])),
    "named": Pair(torch.rand(2, 2).bfloat16(), torch.zeros(0, 4, dtype=torch.uint8)),
    "no dimension": torch.tensor(5.0),
    "no rows": torch.zeros(3, 0, 2),
    "not a number": torch.tensor([float("nan"), -0.0]),
}
AS_THEY_ARE = {
    "words": ["a", "b"],
    "tensor and word": [torch.ones(2), "b"],
    "large": torch.zeros(MOST_BYTES + 1, dtype=torch.uint8),
    "sparse": torch.eye(3).to_sparse(),
    "strided": torch.arange(12.0).view(3, 4).t(),
    "channels last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "one number of a strided tensor": torch.rand(1, 5)[:, -1],
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "the same memory twice": [torch.ones(2)] * 2,
}


class Named(namedtuple("Named", ["x"])):
    """Can hold more than its fields."""


def octets(tensor: torch.Tensor) -> list[int]:
    plain = tensor.resolve_conj().contiguous().reshape(-1)
    return plain.view(torch.uint8).tolist()


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.stride() == right.stride()
        assert octets(left) == octets(right)
        assert right.data_ptr() % 64 == 0
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    else:
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_the_same_behind_a_pickle(name: str) -> None:
    sent = parcel(BATCHES[name])
    assert sent is not BATCHES[name]
    assert_same(BATCHES[name], pickle.loads(pickle.dumps(sent)))


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_what_is_large_or_no_tensor_goes_as_it_is(name: str) -> None:
    assert parcel(AS_THEY_ARE[name]) is AS_THEY_ARE[name]


class Rows(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((4,), float(index)), "y": index}


def test_batches_out_of_workers_are_those_without_and_not_in_shared_memory() -> None:
    plain = list(DataLoader(Rows(), 3))
    sent = list(DataLoader(Rows(), 3, num_workers=2, collate_fn=Parcels(default_collate)))
    for left, right in zip(plain, sent, strict=True):
        assert_same(left, right)
        assert not right["x"].is_shared()
    # As torch hands them over.
    assert next(iter(DataLoader(Rows(), 3, num_workers=1)))["x"].is_shared()


def last_column(samples: Any) -> Any:
    rows = default_collate(samples)["x"]
    return rows[:, :-1], rows[:, -1]


def test_a_last_batch_of_one_strided_number_arrives() -> None:
    collate = Parcels(last_column)
    sent = list(DataLoader(Rows(), 3, num_workers=1, collate_fn=collate, timeout=20))
    assert sent[-1][1].tolist() == [9.0]


def test_a_named_tuple_that_holds_more_goes_as_it_is() -> None:
    batch = Named(torch.ones(2))
    assert parcel(batch) is not batch
    batch.more = 1
    assert parcel(batch) is batch


def test_in_the_scripts_own_process_it_is_the_scripts_function() -> None:
    assert Parcels(default_collate)([torch.ones(1)]).tolist() == [[1.0]]


class Sometimes(Dataset):
    """Draws for some samples only, the first is none of them."""

    def __init__(self, draws: bool) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.randn(2) if self.draws and index % 7 == 5 else torch.zeros(2)
        return noise + index


@pytest.mark.parametrize("draws", [True, False])
def test_a_worker_that_draws_says_so_and_its_batch_arrives(draws: bool) -> None:
    ear = Ear()
    collate = Parcels(default_collate, ear)
    loader = DataLoader(Sometimes(draws), 4, num_workers=1, collate_fn=collate)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4] * 6
    assert ear.moved == ("torch's global RNG" if draws else None)


ORPHANED = """
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate
from hotlap.feed.memory.parcel import Parcels
data = TensorDataset(torch.zeros(400, 784))
loader = DataLoader(data, 50, num_workers=2, collate_fn=Parcels(default_collate))
batches = iter(loader)
next(batches)
print(*[worker.pid for worker in batches._workers], flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_workers_end_with_the_process_that_they_worked_for() -> None:
    command = [sys.executable, "-c", ORPHANED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2 and all(map(_is_running, workers))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        # What is left of them holds the pipe open, on which the other side would wait.
        end = time.monotonic() + 20
        while any(map(_is_running, workers)) and time.monotonic() < end:
            time.sleep(0.1)
        left = [worker for worker in workers if _is_running(worker)]
        for worker in left:
            os.kill(worker, signal.SIGKILL)
        assert not left


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
