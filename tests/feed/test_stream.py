"""A stream gives every sample once, in one order, whoever reads it and wherever it is entered."""

import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotlap import rng
from hotlap.errors import RunError, UsageError
from hotlap.feed.samples.order import through_buffer
from hotlap.feed.sources.stream import Stream
from hotlap.feed.sources.stream_reader import BLOCK
from tests.feed.numbers import Noisy, Numbers, SplitsItself
from tests.feed.rank import BATCH, COUNT

WORLD = 2


def steps(stream: Stream, epoch: int = 0, first: int = 0, workers: int = 0) -> list[str]:
    """Return each step of an epoch, and whether it was said to be the last."""
    stream.num_workers = workers
    given = enumerate(stream.epoch(epoch, first), first + 1)
    return [f"{step!r} {number == stream.last}" for number, step in given]


def numbers(stream: Stream, epoch: int = 0) -> list[list[int]]:
    return [[x for _, b in step for x in b.tolist()] for step in stream.epoch(epoch)]


def flat(given: list[list[int]]) -> list[int]:
    return [x for step in given for x in step]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[list[int]]]]:
    """What two ranks with two worker processes each were fed."""
    file = tmp_path_factory.mktemp("ranks") / "meet"
    command = [sys.executable, "-m", "tests.feed.rank"]
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(WORLD), str(file)],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    printed = [process.communicate(timeout=100) for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    return json.loads(printed[0][0])


@pytest.mark.parametrize("kind", ["numbers", "splits itself"])
def test_two_ranks_with_two_workers_each_get_every_sample_once(
    kind: str, ranks: list[dict[str, list[list[int]]]]
) -> None:
    first, second = ranks[0][kind], ranks[1][kind]
    # The last step has one sample: a rank that gets none of it makes the step all the same.
    assert len(first) == len(second) == -(-COUNT // BATCH)
    assert (len(first[-1]), len(second[-1])) == (1, 0)
    assert all(len(step) == BATCH // 2 for step in first[:-1] + second[:-1])
    alone = numbers(Stream(Numbers(COUNT), BATCH))
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [sorted(s) for s in alone]
    assert sorted(flat(first + second)) == list(range(COUNT))


def test_that_is_more_than_a_dataloader_does(ranks: list[dict[str, list[list[int]]]]) -> None:
    got = flat(ranks[0]["a DataLoader"] + ranks[1]["a DataLoader"])
    assert sorted(got) == sorted(list(range(COUNT)) * 4)


def draws(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples]) + random.random()


def augmented(sample: Any, generator: torch.Generator) -> Any:
    return sample[0] + torch.rand((), generator=generator), sample[1]


def shaken(sample: Any) -> Any:
    return sample[0] + random.random(), sample[1]


def scaled(batch: Any, draws: Any) -> Any:
    return batch[0] * draws.uniform(1), batch[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transform": augmented, "micro": 3},
        {"transform": shaken, "batch_transform": scaled},
        {"micro": 3, "buffer": 10},
        {"shuffle": False, "drop_last": True},
        {"collate": draws},
    ],
    ids=lambda options: ", ".join(options),
)
def test_any_number_of_workers_gives_the_same_batches(options: dict[str, Any]) -> None:
    stream = Stream(Noisy(77), 8, **options)
    alone = [steps(stream, epoch) for epoch in (0, 1)]
    assert [step.endswith("True") for step in alone[0]].index(True) == len(alone[0]) - 1
    assert alone[0] != alone[1]
    assert steps(Stream(Noisy(77), 8, **{"seed": 1, **options})) != alone[0]
    for workers in (1, 2):
        assert [steps(stream, epoch, workers=workers) for epoch in (0, 1)] == alone
    assert stream.notes == {"worker_processes": 2}


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle": False}], ids=str)
@pytest.mark.parametrize("count", [64, 65])
def test_an_epoch_can_be_entered_at_any_step(count: int, options: dict[str, Any]) -> None:
    stream = Stream(Noisy(count), 8, micro=3, buffer=20, **options)
    whole = steps(stream, 1)
    assert len(whole) == (8 if count == 64 or "drop_last" in options else 9)
    for first in range(1, len(whole)):
        assert steps(stream, 1, first) == whole[first:]
    assert steps(stream, 1, 5, workers=2) == whole[5:]


def test_reading_leaves_the_models_random_numbers_alone() -> None:
    before = rng.global_random_states()
    steps(Stream(Noisy(40), 8, collate=draws))
    assert rng.generator_that_advanced(before) is None


def test_without_shuffling_the_order_is_the_streams_own() -> None:
    assert flat(numbers(Stream(SplitsItself(70), 8, shuffle=False))) == list(range(70))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 3000])
def test_a_buffer_gives_each_item_once_and_none_too_early(count: int) -> None:
    def order(epoch: int) -> list[int]:
        return list(through_buffer(iter(range(count)), 10, seed=3, epoch=epoch))

    given = order(0)
    assert sorted(given) == list(range(count))
    assert all(item < place + 10 for place, item in enumerate(given))
    assert given == order(0)
    assert count < 9 or given != order(1)


def test_every_order_of_a_short_stream_is_as_likely_as_the_others() -> None:
    seen = [
        tuple(through_buffer(iter("abc"), size, seed=0, epoch=epoch))
        for size in (3, 10)
        for epoch in range(600)
    ]
    assert min(seen.count(order) for order in set(seen)) > 150
    assert len(set(seen)) == 6


class Counts(Numbers):
    """Counts how often it was begun, and is told of the epoch."""

    begun = 0
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.begun = self.begun + 1
        yield from (100 * self.epoch + 1000 * self.begun + n for n in range(self.count))


@pytest.mark.parametrize("workers", [0, 1])
def test_set_epoch_is_called_and_nothing_else_is_carried_on(workers: int) -> None:
    stream = Stream(Counts(3), 8, shuffle=False)
    stream.num_workers = workers
    assert numbers(stream, 0) == [[1000, 1001, 1002]]
    assert numbers(stream, 2) == [[1200, 1201, 1202]]


def test_a_data_set_that_counts_its_epochs_itself_is_told_how(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Alone(Numbers):
        def __iter__(self) -> Iterator[Any]:
            self.count += 1
            return super().__iter__()

    with caplog.at_level(logging.WARNING, "hotlap"):
        numbers(Stream(Numbers(3), 8))
        assert not caplog.messages
        numbers(Stream(Alone(3), 8))
    assert "reading changes `count`" in caplog.text
    assert "set_epoch" in caplog.text


class Owns(Numbers):
    def __init__(self, held: Any) -> None:
        super().__init__(3)
        self.parts = [{"held": held}]


@pytest.mark.parametrize(
    "make",
    [random.Random, torch.Generator, np.random.default_rng, lambda: np.random.RandomState(0)],
)
def test_a_random_generator_that_nobody_seeds_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match=r"Owns.parts\[0\]\['held'\].*set_epoch"):
        Stream(Owns(make()), 8)

    class Seeds(Owns):
        def set_epoch(self, epoch: int) -> None:
            pass

    Stream(Seeds(make()), 8)
    Stream(Owns(torch.default_generator), 8)


def endless(kind: str) -> Any:
    import itertools

    class WhileTrue(Numbers):
        def __iter__(self) -> Iterator[Any]:
            number = 0
            while True:
                yield number
                number += 1

    class Cycle(Numbers):
        def __iter__(self) -> Iterator[Any]:
            for number in itertools.cycle(range(self.count)):
                yield number + 1

    class Broken(Numbers):
        def __iter__(self) -> Iterator[Any]:
            number = 0
            while True:
                yield number
                number += 1
                if number == self.count:
                    break

    return {"while": WhileTrue, "cycle": Cycle, "broken": Broken}[kind](9)


@pytest.mark.parametrize("kind", ["while", "cycle"])
def test_epochs_over_an_endless_stream_are_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=r"never ends.*steps=N"):
        Stream(endless(kind), 8, ends=True)
    given = Stream(endless(kind), 8).epoch(0)
    assert [len(next(given)) for _ in range(20)] == [1] * 20
    assert len(numbers(Stream(endless("broken"), 8, ends=True))) == 2


class Says(Numbers):
    def __init__(self, count: int, says: int) -> None:
        super().__init__(count)
        self.says = says

    def __len__(self) -> int:
        return self.says


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("count", "gave"), [(39, "39"), (41, "41"), (200, "64 or more")])
def test_a_length_that_is_wrong_is_an_error(count: int, gave: str, workers: int) -> None:
    assert len(steps(Stream(Says(40, 40), 8))) == 5
    with pytest.raises(RunError, match=f"says 40 samples, but its `__iter__` yielded {gave}"):
        steps(Stream(Says(count, 40), 8), workers=workers)


def test_what_gives_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="data is empty"):
        steps(Stream(Numbers(0), 8))
    with pytest.raises(
        UsageError,
        match="a step takes 8 samples, but the task's data yielded only 7, and drop_last",
    ):
        steps(Stream(Numbers(7), 8, drop_last=True))
    with pytest.raises(
        RunError,
        match=r"yielded 20 samples in epoch 1, but at least 33 are needed.*after 4 steps of 8",
    ):
        steps(Stream(Numbers(20), 8), first=4)

    class Once(Numbers):
        def __init__(self) -> None:
            self.rest = iter(range(9))

        def __iter__(self) -> Iterator[Any]:
            return self.rest

    stream = Stream(Once(), 8)
    assert len(steps(stream)) == 2
    with pytest.raises(RunError, match="can be read only once"):
        steps(stream, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_data_set_raises_reaches_the_user(workers: int) -> None:
    class Breaks(Numbers):
        def __iter__(self) -> Iterator[Any]:
            yield from range(BLOCK + 3)
            raise KeyError("a file that is not there")

    with pytest.raises(KeyError, match="a file that is not there"):
        steps(Stream(Breaks(0), 8), workers=workers)


def test_a_rank_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rank=2 is not valid\. Expected: 0 to 1"):
        Stream(Numbers(3), 8, rank=2, world=2)


class Reads(Numbers):
    """Counts the samples that were read."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        for sample in super().__iter__():
            Reads.read += 1
            yield sample


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_step_that_is_given_again_is_not_read_again(at: int) -> None:
    expected = numbers(Stream(Numbers(30), 8, seed=3))
    stream = Stream(Reads(30), 8, seed=3)
    given = stream.epoch(0)
    for _ in range(at + 1):
        next(given)
    Reads.read = 0
    del given
    stream.micro = 3
    again = [[(n, batch.tolist()) for n, batch in step] for step in stream.again(0, at)]
    assert [[x for _, batch in step for x in batch] for step in again] == expected[at:]
    assert max(n for step in again for n, _ in step) == 3
    assert (stream.last, Reads.read) == (len(expected), 0)
    assert numbers(stream, 0) == expected


def test_a_step_that_is_no_longer_there_is_read_again() -> None:
    stream = Stream(Reads(30), 8, seed=3)
    given = stream.epoch(0)
    for _ in range(3):
        next(given)
    Reads.read = 0
    again = [[x for _, b in step for x in b.tolist()] for step in stream.again(0, 1)]
    assert again == numbers(Stream(Numbers(30), 8, seed=3))[1:]
    assert Reads.read == 30


def test_a_stream_that_breaks_off_does_not_end_the_epoch_where_it_is_given_again() -> None:
    class Breaks(Numbers):
        broken = False

        def __iter__(self) -> Iterator[int]:
            for number, sample in enumerate(super().__iter__()):
                if number == 40 and not Breaks.broken:
                    Breaks.broken = True
                    raise MemoryError("a block of samples")
                yield sample

    stream = Stream(Breaks(80), 8, shuffle=False)
    given, seen = stream.epoch(0), 0
    with pytest.raises(MemoryError):
        for _ in given:
            seen += 1
    again = [[x for _, b in step for x in b.tolist()] for step in stream.again(0, seen - 1)]
    assert again == numbers(Stream(Numbers(80), 8, shuffle=False))[seen - 1 :]
