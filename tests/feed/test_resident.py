"""Samples from memory are the ones that reading gives, or are not served from memory."""

import gc
import random
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from hotlap import rng
from hotlap.feed.memory.resident import ResidentRows
from hotlap.techniques.record import FeedTarget
from hotlap.techniques.resident import TECHNIQUE, Options

COUNT = 50


class Numbered(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 2), float(index)), index


class Pair(NamedTuple):
    left: torch.Tensor
    right: float


class Structured(Numbered):
    def __getitem__(self, index: int) -> Any:
        return {"pair": Pair(torch.tensor([index]), index / 2), "flags": [index % 2 == 0]}


class Augmented(Numbered):
    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + self.draw()])


class OwnGenerator(Numbered):
    def __init__(self) -> None:
        self.transforms = [np.random.default_rng(0)]


class Counting(Numbered):
    """Gives another sample each time, by a state that no random generator shows."""

    reads = 0

    def __getitem__(self, index: int) -> Any:
        Counting.reads += 1
        return torch.tensor([float(Counting.reads)])


def rows_and_fetch(dataset: Dataset, max_bytes: int = 2**20) -> tuple[ResidentRows, Any]:
    rows = ResidentRows(dataset, max_bytes)

    def read(indices: list[int]) -> Any:
        return default_collate([dataset[i] for i in indices])

    return rows, lambda: rows.bind(dataset, read)


def epoch(fetch: Any, size: int = 8) -> list[Any]:
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3)).tolist()
    return [fetch(order[i : i + size]) for i in range(0, COUNT, size)]


@pytest.mark.parametrize("kind", [Numbered, Structured])
def test_the_second_epoch_is_the_first_bit_for_bit(kind: type) -> None:
    rows, begin = rows_and_fetch(kind())
    first, second = epoch(begin()), epoch(begin())
    assert rows.refused is None
    assert rows.served == len(second)
    assert repr(first) == repr(second)
    assert type(first[0]) is type(second[0])


def counted(function: Any, inside: list[int]) -> Any:
    def call(*args: Any) -> None:
        inside.append(1)
        function(*args)
        inside.pop()

    return call


def shares(sampler: Any, fetch: Any) -> list[Any]:
    order = list(sampler)
    return [fetch(order[i : i + 8]) for i in range(0, len(order), 8)]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_distributed_samplers_share_is_read_as_far_as_it_is_not_kept(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, asked = Numbered(), list[tuple[bool, int]]()
    rows = ResidentRows(data, 2**20)
    compares: list[int] = []
    monkeypatch.setattr(rows, "_read_again", counted(rows._read_again, compares))

    def read(indices: list[int]) -> Any:
        asked.extend((bool(compares), index) for index in indices)
        return default_collate([data[i] for i in indices])

    sampler = DistributedSampler(data, num_replicas=replicas, rank=0, seed=5)
    expected, known = [], set()
    for number in range(4):
        sampler.set_epoch(number)
        order = list(sampler)
        expected += [Numbered()[i][0] for i in order]
        known |= set(order)
    given = []
    for number in range(4):
        sampler.set_epoch(number)
        given += [row for inputs, _ in shares(sampler, rows.bind(data, read)) for row in inputs]
    assert repr(given) == repr(expected)
    assert rows.refused is None
    assert rows.served > 0
    # Each sample is read once; what comes on top is read to be compared.
    kept = [index for read_for, index in asked if not read_for]
    assert sorted(kept) == sorted(known)


def test_a_batch_that_is_completed_is_read_as_a_plain_run_where_its_data_set_draws() -> None:
    class Late(Numbered):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index + (random.random() if index > 9 else 0.0)])

    rows, begin = rows_and_fetch(Late())
    random.seed(1)
    fetch = begin()
    given = [fetch([0, 1, 2, 3]), fetch([2, 3, 10, 11]), fetch([1, 12])]
    random.seed(1)
    plain = [default_collate([Late()[i] for i in part]) for part in ([2, 3, 10, 11], [1, 12])]
    assert repr(given[1:]) == repr(plain)
    assert rows.refused is not None
    assert rows.served == 0


def test_what_threw_the_samples_away_is_said() -> None:
    data = Numbered()
    data.path = 0
    rows, begin = rows_and_fetch(data)
    for number in range(3):
        data.path = number
        epoch(begin())
    target = FeedTarget(None, notes={"resident": rows})
    shown = TECHNIQUE.proof(target, Options())
    assert shown.state == "no_effect"
    assert "Numbered.path changed" in shown.why
    assert "one epoch" not in shown.why


def test_a_changed_batch_does_not_change_what_is_kept() -> None:
    rows, begin = rows_and_fetch(Numbered())
    first = epoch(begin())
    for inputs, _ in epoch(begin()):
        inputs.zero_()
    assert repr(epoch(begin())) == repr(first)
    assert rows.refused is None


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (random.random, "Python's global RNG"),
        (np.random.random, "numpy's global RNG"),
        (lambda: torch.rand(1).item(), "torch's global RNG"),
    ],
)
def test_a_data_set_that_draws_is_refused_at_its_first_batch(draw: Any, name: str) -> None:
    rows, begin = rows_and_fetch(Augmented(draw))
    begin()([0, 1])
    assert rows.refused is not None
    assert name in rows.refused or "random generator" in rows.refused
    assert rows.served == 0


def test_reading_for_the_check_leaves_the_random_states_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = rng.global_random_states()
    _, begin = rows_and_fetch(Numbered())
    epoch(begin())
    epoch(begin())
    assert rng.generator_that_advanced(before) is None


def test_the_comparison_of_random_states_can_fail() -> None:
    before = rng.global_random_states()
    random.random()
    assert rng.generator_that_advanced(before) == "Python's global RNG"


def test_a_data_set_with_a_generator_of_its_own_is_refused() -> None:
    rows, _ = rows_and_fetch(OwnGenerator())
    assert rows.refused is not None
    assert "OwnGenerator.transforms[0]" in rows.refused


def test_a_data_set_that_reading_changes_is_refused_before_any_sample_is_served() -> None:
    rows, begin = rows_and_fetch(Counting())
    epoch(begin())
    epoch(begin())
    assert rows.refused is not None
    assert rows.refused == "reading a sample changes Counting.Counting.reads"
    assert rows.served == 0
    assert rows.served == 0


def test_an_attribute_that_changes_between_epochs_makes_samples_be_read_anew() -> None:
    dataset = Numbered()
    dataset.scale = 1.0
    rows, begin = rows_and_fetch(dataset)
    epoch(begin())
    dataset.scale = 2.0
    epoch(begin())
    assert rows.served == 0
    epoch(begin())
    assert rows.served > 0


def test_a_data_set_larger_than_allowed_is_refused_with_both_sizes() -> None:
    rows, begin = rows_and_fetch(Numbered(), max_bytes=100)
    begin()([0, 1])
    assert rows.refused is not None
    assert "MiB" in rows.refused


def test_ragged_samples_are_refused() -> None:
    class Ragged(Numbered):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1 + index // 10)

    rows, begin = rows_and_fetch(Ragged())
    fetch = begin()
    fetch([0, 1])
    fetch([10, 11])
    assert rows.refused == "samples differ in shape, dtype or structure"


class Frames(Numbered):
    """Samples whose last dimension was the channels, as cameras and files have it."""

    def __init__(self, is_copied: bool) -> None:
        self.is_copied = is_copied

    def __getitem__(self, index: int) -> Any:
        frames = torch.full((2, 4, 5, 3), float(index)).permute(0, 3, 1, 2)
        return frames.contiguous() if self.is_copied else frames


@pytest.mark.parametrize("is_copied", [False, True])
def test_batches_keep_their_strides(is_copied: bool) -> None:
    rows, begin = rows_and_fetch(Frames(is_copied))
    first, second = epoch(begin()), epoch(begin())
    assert [batch.stride() for batch in first] == [batch.stride() for batch in second]
    assert first[0].is_contiguous() is is_copied
    assert (rows.refused is None) is is_copied
    assert is_copied or "is not contiguous" in str(rows.refused)


def test_filling_ahead_reads_each_sample_once_and_draws_nothing() -> None:
    rows, begin = rows_and_fetch(Numbered())
    fetch = begin()
    before = rng.global_random_states()
    rows.fill(fetch.dataset, fetch.read)
    assert rng.generator_that_advanced(before) is None
    # One sample alone, which shows how large samples are, and all the others.
    assert rows.read_batches == 2
    epoch(fetch)
    assert rows.read_batches == 2


def test_filling_ahead_takes_one_thread_and_gives_the_others_back() -> None:
    """Trials fill at the same time: with all threads each they would be three times slower."""

    class Noting(Numbered):
        def __getitem__(self, index: int) -> Any:
            seen.append(torch.get_num_threads())
            return super().__getitem__(index)

    seen: list[int] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        rows, begin = rows_and_fetch(Noting())
        fetch = begin()
        rows.fill(fetch.dataset, fetch.read)
        # One sample is made in both ways before, to see whether it is the same.
        assert rows.refused is None and seen == [3] + (1 + COUNT) * [1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_what_rounds_otherwise_in_one_thread_is_filled_as_a_plain_run_reads_it() -> None:
    class Rounding(Numbered):
        """Stands for a mean of many numbers."""

        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index + torch.get_num_threads() / 8])

    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        rows, begin = rows_and_fetch(Rounding())
        fetch = begin()
        plain = epoch(fetch.read)
        rows.fill(fetch.dataset, fetch.read)
        assert all(map(torch.equal, epoch(fetch), plain))
        assert rows.refused is None and rows.served == len(plain)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: torch.rand(1).item()])
def test_filling_ahead_from_a_data_set_that_draws_leaves_the_script_its_numbers(draw: Any) -> None:
    rows, begin = rows_and_fetch(Augmented(draw))
    fetch = begin()
    # What the walk over the code already refuses is never filled.
    rows.refused = None
    before = rng.global_random_states()
    rows.fill(fetch.dataset, fetch.read)
    assert rows.refused is not None
    assert rng.generator_that_advanced(before) is None


@pytest.mark.parametrize("changed", [0, 1, 2, 30, 48, 49])
def test_every_sample_is_read_again_once_in_a_few_epochs(changed: int) -> None:
    """A sample that changes unseen, as a file does, is not served for long, whichever it is."""
    dataset, shift = Numbered(), [0.0]
    rows = ResidentRows(dataset, 2**20)
    read_again: list[int] = []

    def read(indices: list[int]) -> Any:
        read_again.append(len(indices))
        samples = [dataset[i] for i in indices]
        return default_collate([(x + shift[0] * (i == changed), i) for x, i in samples])

    for _ in range(3):
        epoch(rows.bind(dataset, read))
    assert rows.served > 0
    shift[0] = 1.0
    read_again.clear()
    for _ in range(3):
        epoch(rows.bind(dataset, read))
    assert rows.refused is not None
    assert "is not the same when read again. This was detected after" in rows.refused
    # And that is found out with a few samples for each epoch.
    assert read_again[0] < COUNT / 2


def test_a_loader_gives_the_same_batches_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches(resident: bool) -> str:
        torch.manual_seed(5)
        loader = DataLoader(Numbered(), batch_size=8, shuffle=True)
        rows = ResidentRows(loader.dataset, 2**20)
        seen = []
        for _ in range(3):
            iterator = iter(loader)
            if resident:
                fetcher = iterator._dataset_fetcher
                fetcher.fetch = rows.bind(loader.dataset, fetcher.fetch)
            seen += [*iterator, torch.rand(1)]
        assert (rows.served > 0) is resident
        return repr(seen)

    assert batches(False) == batches(True)


STREAM = random.Random(3)


class GlobalGenerator(Numbered):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + STREAM.random()])


def test_a_generator_that_only_the_code_reaches_is_seen_before_anything_is_read() -> None:
    before = STREAM.getstate()
    rows, begin = rows_and_fetch(GlobalGenerator())
    begin()
    assert rows.refused is not None
    assert "STREAM" in rows.refused
    assert STREAM.getstate() == before


def test_a_tensor_changed_in_place_makes_samples_be_read_anew() -> None:
    dataset = Numbered()
    dataset.labels = torch.zeros(COUNT)
    rows, begin = rows_and_fetch(dataset)
    epoch(begin())
    dataset.labels[3] = 1
    epoch(begin())
    assert rows.served == 0


def test_a_data_set_that_grows_is_read_as_usual() -> None:
    class Growing(Numbered):
        count = COUNT

        def __len__(self) -> int:
            return self.count

    dataset = Growing()
    rows, begin = rows_and_fetch(dataset)
    epoch(begin())
    dataset.count += 5
    begin()([COUNT + 1])
    assert rows.refused is not None


@pytest.mark.parametrize("indices", [[-1, 2], [(1, 0.5), (2, 0.5)], ["a", "b"]])
def test_other_indices_than_positions_are_left_to_the_data_set(indices: list[Any]) -> None:
    dataset = Numbered()
    rows = ResidentRows(dataset, 2**20)
    assert rows.bind(dataset, lambda given: given)(indices) == indices
    assert rows.refused is not None


def test_samples_that_are_more_than_tensors_are_left_to_the_data_set() -> None:
    class Marked(torch.Tensor):
        pass

    class Special(Numbered):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(2).as_subclass(Marked)

    rows, begin = rows_and_fetch(Special())
    assert isinstance(begin()([0, 1]), Marked)
    assert rows.refused is not None


class Shift:
    __slots__ = ("by",)

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.by


class Transformed(Numbered):
    def __init__(self) -> None:
        self.transforms = [Shift(1.0)]
        self.pixels = np.zeros((COUNT, 3), dtype=np.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.transforms[0](torch.from_numpy(self.pixels[index].astype(np.float32)))


@pytest.mark.parametrize("change", ["a transform's own setting", "an array in place", "nothing"])
def test_what_changes_deep_inside_makes_samples_be_read_anew(change: str) -> None:
    dataset = Transformed()
    rows, begin = rows_and_fetch(dataset)
    epoch(begin())
    if change == "a transform's own setting":
        dataset.transforms[0].by = 2.0
    elif change == "an array in place":
        dataset.pixels[7, 1] = 1
    expected = repr(epoch(lambda indices: default_collate([dataset[i] for i in indices])))
    assert repr(epoch(begin())) == expected
    assert (rows.served > 0) is (change == "nothing")


class Talking(Numbered):
    def __getitem__(self, index: int) -> Any:
        return self.decode(index)

    def decode(self, index: int) -> Any:
        print("decoding", index)
        return torch.tensor([index])


def test_a_data_set_that_prints_is_read_as_usual() -> None:
    rows, _ = rows_and_fetch(Talking())
    assert rows.refused == "reading a sample prints (Talking.Talking.decode)"


def test_what_fails_in_hotlap_leaves_the_script_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, begin = rows_and_fetch(Numbered())
    first, begun = epoch(begin()), begin()

    def broken(*args: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr("hotlap.feed.memory.row_store.gatherer", broken)
    assert repr(epoch(begun)) == repr(first)
    assert rows.refused == "RuntimeError: planted"


def test_what_the_data_set_raises_goes_to_the_script() -> None:
    class Failing(Numbered):
        def __getitem__(self, index: int) -> Any:
            raise KeyError("gone")

    rows, begin = rows_and_fetch(Failing())
    with pytest.raises(KeyError, match="gone"):
        begin()([0, 1])
    assert rows.refused is None


def test_all_data_sets_share_one_budget_and_give_back_what_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotlap.feed.memory.row_store._everybody", weakref.WeakSet())
    kept = [Numbered(), Numbered()]
    # A sample is six floats and one whole number of eight bytes.
    pairs = [rows_and_fetch(dataset, max_bytes=COUNT * 32 + 100) for dataset in kept]
    for _, begin in pairs:
        begin()([0, 1])
    assert pairs[0][0].refused is None
    assert "other datasets" in str(pairs[1][0].refused)
    pairs[0][0].drop()
    later, begin = rows_and_fetch(kept[1], max_bytes=COUNT * 32 + 100)
    begin()([0, 1])
    assert later.refused is None


def test_what_nobody_can_reach_any_more_takes_nothing_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotlap.feed.memory.row_store._everybody", weakref.WeakSet())
    gc.disable()
    try:
        dataset = Numbered()
        rows, begin = rows_and_fetch(dataset, max_bytes=COUNT * 32 + 100)
        begin()([0, 1])
        rows.cycle = rows  # type: ignore[attr-defined]
        del rows, begin
        later, begin = rows_and_fetch(dataset, max_bytes=COUNT * 32 + 100)
        begin()([0, 1])
    finally:
        gc.enable()
    assert later.refused is None
