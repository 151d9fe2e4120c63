"""Which loaders of a script are given workers."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, TensorDataset

from hotlap import rng
from hotlap.attach.entry import Script
from hotlap.attach.runner import run
from hotlap.errors import DIFFERS
from hotlap.feed.sources.source import Source
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.techniques import FeedTarget, Refusal, get
from hotlap.techniques.applying import Applied
from hotlap.techniques.record import Proof
from tests.tuning.faked import FACTS

TECHNIQUE = get("workers")
OPTIONS = TECHNIQUE.options({"count": 1})
DATA = TensorDataset(torch.arange(40.0).view(20, 2))


class Balanced(Sampler):
    """Draws each sample when it is asked for it."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def __iter__(self) -> Iterator[int]:
        if self.at_once:
            yield from torch.randint(20, (20,)).tolist()
        else:
            for _ in range(20):
                yield int(torch.randint(20, ()))

    def __len__(self) -> int:
        return 20


class Silent(Dataset):
    """Has a length that nobody needs."""

    def __len__(self) -> int:
        raise AttributeError("not known yet")

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (
            DataLoader(DATA, 4, sampler=Balanced(False)),
            "draws from torch's global RNG between batches",
        ),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(Balanced(False), 4, False)),
            "between batches",
        ),
        (DataLoader(TensorDataset(torch.ones(8, 1, requires_grad=True)), 4), "requires_grad=True"),
    ],
)
def test_who_would_get_other_batches_is_refused(loader: Any, words: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(Refusal, match=words):
        TECHNIQUE.apply(FeedTarget(loader), OPTIONS)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, 4, shuffle=True),
        DataLoader(DATA, 4, sampler=Balanced(True)),
        DataLoader(DATA, 4, sampler=list(range(8))),
        DataLoader(DATA, batch_sampler=[[0, 1], [2, 3]]),
    ],
)
def test_others_are_given_workers(loader: Any) -> None:
    state = torch.get_rng_state()
    TECHNIQUE.apply(FeedTarget(loader), OPTIONS)
    assert loader.num_workers == 1 and torch.equal(torch.get_rng_state(), state)


class Frames(Dataset):
    """Samples whose channels were last: torch keeps that, but not in a worker process."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2, 4, 5, 3), float(index)).permute(0, 3, 1, 2)


def test_batches_keep_their_strides() -> None:
    with pytest.raises(Refusal, match="has other strides"):
        TECHNIQUE.apply(FeedTarget(DataLoader(Frames(), 4)), OPTIONS)
    # A function of the script's own makes the same in any process.
    loader = DataLoader(Frames(), 4, collate_fn=torch.stack)
    TECHNIQUE.apply(FeedTarget(loader), OPTIONS)
    strides = [batch.stride() for batch in DataLoader(Frames(), 4, collate_fn=torch.stack)]
    assert [batch.stride() for batch in loader] == strides
    assert [batch.stride() for batch in DataLoader(Frames(), 4, num_workers=1)] != strides


class Reading(Dataset):
    """Stands for a sum of many numbers, which threads round otherwise."""

    def __init__(self, rounds: bool) -> None:
        self.rounds = rounds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        # A product, which needs the threads that torch computes with.
        torch.ones(200, 200) @ torch.ones(200, 200)
        return torch.ones(1) * (torch.get_num_threads() if self.rounds else index)


@pytest.fixture
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    # They are there before a child is forked.
    torch.ones(500, 500) @ torch.ones(500, 500)
    torch.ones(200_000).sum()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_two_threads")
def test_who_rounds_otherwise_in_one_thread_is_refused() -> None:
    def engines() -> Any:
        return FeedTarget(Source(Reading(True), 4), own_order=True)

    for make in (lambda: FeedTarget(DataLoader(Reading(True), 4)), engines):
        with pytest.raises(Refusal, match="has other values if torch computes it in one thread"):
            TECHNIQUE.apply(make(), OPTIONS)
    # In workers of its own it was computed in one thread before.
    loader = DataLoader(Reading(True), 4, num_workers=2)
    TECHNIQUE.apply(FeedTarget(loader), OPTIONS)
    assert loader.num_workers == 1


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("own_order", [False, True])
def test_who_is_the_same_in_one_thread_is_given_workers(own_order: bool) -> None:
    loader: Any = Source(Reading(False), 4) if own_order else DataLoader(Reading(False), 4)
    TECHNIQUE.apply(FeedTarget(loader, own_order=own_order), OPTIONS)
    assert loader.num_workers == 1


@pytest.mark.parametrize(("own", "wanted"), [(None, 4), (8, 8)])
def test_a_loader_that_has_workers_gets_another_number_or_longer_queues(
    own: int | None, wanted: int
) -> None:
    for count in (2, 3):
        loader = DataLoader(DATA, 4, shuffle=True, num_workers=2, prefetch_factor=own)
        options = TECHNIQUE.options({"count": count, "prefetch": 4})
        TECHNIQUE.apply(FeedTarget(loader), options)
        assert (loader.num_workers, loader.prefetch_factor) == (count, wanted)


def test_who_has_workers_is_offered_as_many_first() -> None:
    def counts(own: int) -> list[Any]:
        facts = replace(FACTS, loaders=(replace(FACTS.loaders[0], num_workers=own),))
        return list(TECHNIQUE.candidates(facts, Host(cores=2)))

    assert counts(0) == [{"count": 2}, {"count": 1}]
    offered = [{}, {"prefetch": 8}, {"persistent": True}]
    assert counts(2) == [{"count": 2, **more} for more in offered]
    assert counts(1) == [*({"count": 1, **more} for more in offered), {"count": 2}]


class Augmented(Dataset):
    """Draws in code that nobody but itself looks at."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index + float(self.draw())])


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: torch.rand(1)])
def test_a_data_set_that_draws_keeps_its_own_process(draw: Any) -> None:
    state = rng.global_random_states()
    with pytest.raises(Refusal, match="whose state differs in worker processes"):
        TECHNIQUE.apply(FeedTarget(DataLoader(Augmented(draw), 4)), OPTIONS)
    assert rng.generator_that_advanced(state) is None


def test_one_that_draws_in_workers_keeps_their_number() -> None:
    def loader() -> Any:
        return DataLoader(Augmented(random.random), 4, num_workers=2)

    TECHNIQUE.apply(FeedTarget(loader()), TECHNIQUE.options({"count": 2, "prefetch": 8}))
    with pytest.raises(Refusal, match="whose state differs in worker processes"):
        TECHNIQUE.apply(FeedTarget(loader()), TECHNIQUE.options({"count": 3}))


def test_one_that_sets_its_workers_up_keeps_their_number() -> None:
    def loader() -> Any:
        return DataLoader(DATA, 4, num_workers=2, worker_init_fn=print)

    TECHNIQUE.apply(FeedTarget(loader()), TECHNIQUE.options({"count": 2}))
    with pytest.raises(Refusal, match="num_workers=2 and a worker_init_fn"):
        TECHNIQUE.apply(FeedTarget(loader()), TECHNIQUE.options({"count": 1}))


@pytest.mark.parametrize("count", [2, 3])
def test_looking_at_a_sampler_draws_nothing_from_the_script(count: int) -> None:
    loader = DataLoader(DATA, 4, sampler=Balanced(True), num_workers=2)
    state = rng.global_random_states()
    TECHNIQUE.apply(FeedTarget(loader), TECHNIQUE.options({"count": count}))
    assert rng.generator_that_advanced(state) is None


def test_what_each_worker_has_a_copy_of_keeps_their_number() -> None:
    class Seeded(Augmented):
        def __init__(self) -> None:
            generator = np.random.default_rng(0)
            super().__init__(generator.random)
            self.generator = generator

    def loader() -> Any:
        return DataLoader(Seeded(), 4, num_workers=2)

    TECHNIQUE.apply(FeedTarget(loader()), TECHNIQUE.options({"count": 2}))
    with pytest.raises(Refusal, match="random generator"):
        TECHNIQUE.apply(FeedTarget(loader()), TECHNIQUE.options({"count": 3}))


def test_samples_that_depend_on_their_worker_keep_the_number_of_workers() -> None:
    class ByWorker(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            info = torch.utils.data.get_worker_info()
            return torch.tensor(index if info is None else info.id)

    with pytest.raises(Refusal, match="get_worker_info"):
        loader = DataLoader(ByWorker(random.random), 4, num_workers=2)
        TECHNIQUE.apply(FeedTarget(loader), TECHNIQUE.options({"count": 3}))


def test_a_sample_is_looked_at_without_opening_its_file_here() -> None:
    class Lazy(Augmented):
        file: Any = None

        def __getitem__(self, index: int) -> torch.Tensor:
            if self.file is None:
                self.file = object()
            return torch.tensor(index)

    data = Lazy(random.random)
    TECHNIQUE.apply(FeedTarget(DataLoader(data, 4)), OPTIONS)
    assert data.file is None


def test_a_later_loader_that_sets_its_workers_up_is_left_as_it_is() -> None:
    target = FeedTarget(DataLoader(DATA, 4, num_workers=2))
    options = TECHNIQUE.options({"count": 3})
    TECHNIQUE.apply(target, options)
    later = DataLoader(DATA, 4, num_workers=2, worker_init_fn=print)
    (give,) = target.later_loaders
    give(later)
    assert later.num_workers == 2
    target.notes["worker_processes"] = 3
    proof = TECHNIQUE.proof(target, options)
    assert proof.state == "refused" and "worker_init_fn" in proof.why


SCRIPT = """
import random, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return torch.tensor([index / 48 + random.random(), float(torch.rand(1))])

torch.manual_seed(0)
persistent = sys.argv[1] == "1"
loader = DataLoader(Augmented(), 4, shuffle=True, num_workers=2, persistent_workers=persistent)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in loader:
        loss = torch.nn.functional.dropout(model(batch)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item(), model.weight.tolist())
"""


@pytest.mark.parametrize("persistent", ["0", "1"])
def test_random_augmentation_in_workers_is_the_same_in_longer_queues(
    tmp_path: Path, persistent: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    script = Script(path="train.py", args=(persistent,), cwd=str(tmp_path))
    printed, states = [], []
    for given in ({}, {"workers": {"count": 2, "prefetch": 8}}, {"workers": {"count": 1}}):
        with (tmp_path / "out").open("w+") as out:
            done = run(script, Plan(given), stdout=out.fileno())
            out.seek(0)
            printed.append(out.read())
        assert done.exit_code == 0
        states.append([row["state"] for row in done.techniques])
    assert states == [[], ["applied"], ["refused"]]
    assert printed[0] == printed[1] == printed[2] != ""


def test_a_draw_that_a_worker_tells_of_is_told_and_is_not_applied() -> None:
    target = FeedTarget(DataLoader(DATA, 4))
    TECHNIQUE.apply(target, OPTIONS)
    assert TECHNIQUE.proof(target, OPTIONS).state == "no_effect"
    target.notes["worker_processes"] = 1
    assert TECHNIQUE.proof(target, OPTIONS).state == "applied"
    target.notes["ear"].moved = "numpy.random"
    found = TECHNIQUE.proof(target, OPTIONS)
    assert found.state == "refused"
    assert "numpy.random" in found.why and DIFFERS in found.why


def test_a_length_that_raises_is_a_reason_to_refuse() -> None:
    resident = get("resident")
    with pytest.raises(Refusal, match="raised AttributeError"):
        resident.apply(FeedTarget(DataLoader(Silent(), 4, sampler=[1, 2])), resident.options({}))


def test_what_was_seen_too_late_is_not_hidden_by_a_larger_data_set() -> None:
    applied = Applied(Plan({"workers": {"count": 1}}), ())
    found = {"large": Proof("applied", "fine"), "small": Proof("refused", f"late: {DIFFERS}")}
    for size, name in enumerate(reversed(found)):
        target = FeedTarget(DataLoader(DATA), size=size)
        target.notes["name"] = name
        applied._targets["workers"].append(target)
    technique = replace(TECHNIQUE, proof=lambda target, _: found[target.notes["name"]])
    applied.chosen = [(technique, OPTIONS)]
    (row,) = applied.proofs()
    why = f"late: {DIFFERS}; elsewhere in the script: applied, fine"
    assert row["state"] == "refused" and row["why"] == why
