"""`workers(persistent=true)`: later epochs have the workers of the first, and the same batches."""

import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler, TensorDataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as _worker

from hotlap.attach.apply import PlanInProcess
from hotlap.errors import DIFFERS
from hotlap.feed.purity import reach
from hotlap.plan import Plan
from hotlap.techniques import FeedTarget, Refusal, get
from tests.feed.heard import SAMPLES, Heard, Rows, Trained, trained

PLAN = {"workers": {"count": 2, "persistent": True}}
KEPT = "{} later epochs kept them"


class Shuffled(Sampler[int]):
    """Draws its order when it is asked for it, not when its first index is."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES).tolist())

    def __len__(self) -> int:
        return SAMPLES


class InBatches(Sampler[Any]):
    """Draws as `Shuffled` does, whole batches."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randperm(SAMPLES).view(-1, 4).tolist())

    def __len__(self) -> int:
        return SAMPLES // 4


def same(options: dict[str, Any], **more: Any) -> Trained:
    """Return what was trained with persistent workers, after comparing it with the plain run."""
    plain = trained(Rows(), options, plan={}, **more)
    found = trained(Rows(), options, plan=PLAN, **more)
    assert found.batches == plain.batches
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seeded": 5},
        {"num_workers": 1, "prefetch_factor": 4},
        {"num_workers": 0},
        {"make_sampler": Shuffled},
        {"shuffle": False, "batch_size": 7, "timeout": 30},
    ],
    ids=["shuffled", "seeded", "other number", "none of its own", "eager sampler", "in order"],
)
def test_later_epochs_keep_the_workers_and_give_the_same_batches_and_draws(
    options: dict[str, Any],
) -> None:
    found = same(options)
    assert found.proof["state"] == "applied", found.proof
    assert KEPT.format(3) in found.proof["why"]


def test_a_sampler_of_whole_batches_is_asked_as_often_as_in_a_plain_run() -> None:
    def seen(plan: dict[str, Any]) -> list[str]:
        torch.manual_seed(3)
        loader = Heard(Rows(), batch_sampler=InBatches(), num_workers=2)
        loader.plan = PlanInProcess(Plan(plan))
        return [str(batch) for _ in range(3) for batch in loader]

    assert seen(PLAN) == seen({})


def test_what_cannot_be_looked_at_again_gets_new_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(dataset: Any) -> Any:
        raise RuntimeError("an object of the script's own")

    assert KEPT.format(3) in same({}).proof["why"]
    monkeypatch.setattr(reach, "Reach", failing)
    caplog.set_level(logging.INFO, "hotlap")
    found = same({})
    assert KEPT.format(0) in found.proof["why"]
    assert "cannot be looked at" in caplog.text


def test_a_data_set_that_the_script_changes_gets_new_workers() -> None:
    def change(epoch: int, dataset: Any) -> None:
        if epoch == 2:
            dataset.scale = 5.0

    found = same({}, change=change)
    assert KEPT.format(2) in found.proof["why"]


def test_an_epoch_that_is_broken_off_ends_its_workers() -> None:
    # Of four epochs the first and the third end early.
    found = same({}, until=3)
    assert KEPT.format(1) in found.proof["why"]


def test_another_function_that_makes_batches_gets_new_workers() -> None:
    seen = {}
    for name, plan in (("plain", {}), ("kept", PLAN)):
        torch.manual_seed(3)
        loader = Heard(Rows(), batch_size=4, shuffle=True, num_workers=2)
        loader.plan = PlanInProcess(Plan(plan))
        batches = [str(batch) for batch in loader]
        loader.collate_fn = lambda samples: [*default_collate(samples), len(samples)]
        seen[name] = batches + [str(batch) for _ in range(2) for batch in loader]
    assert seen["kept"] == seen["plain"]


def test_two_iterators_over_one_loader_have_workers_of_their_own() -> None:
    seen = {}
    for name, plan in (("plain", {}), ("kept", PLAN)):
        torch.manual_seed(3)
        loader = Heard(Rows(), batch_size=4, shuffle=True, num_workers=2)
        loader.plan = PlanInProcess(Plan(plan))
        seen[name] = [str(pair) for _ in range(2) for pair in zip(loader, loader, strict=True)]
    assert seen["kept"] == seen["plain"]


def _workers_of(loader: Heard) -> list[Any]:
    iterator = iter(loader)
    list(iterator)
    return list(getattr(iterator, "_workers", []))


def test_workers_that_died_between_epochs_are_replaced_and_none_outlives_its_loader() -> None:
    loader = Heard(Rows(), batch_size=4, num_workers=2)
    loader.plan = PlanInProcess(Plan(PLAN))
    first, again = _workers_of(loader), _workers_of(loader)
    assert [each.pid for each in first] == [each.pid for each in again]
    # torch ends the script where a worker dies while it is waited for.
    process = first[0]
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        others = _workers_of(loader)
    finally:
        signal.signal(signal.SIGCHLD, handler)
    assert process.pid not in [each.pid for each in others]
    del loader
    until = time.monotonic() + 30
    while any(each.is_alive() for each in others) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(each.is_alive() for each in others)


class Counting(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor(index + 0.001 * self.reads), 0


class Drawing(Rows):
    """Draws for one sample, not the first."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() if index >= self.first else 0.0
        return torch.tensor(index + drawn), 0


class Everything(Rows):
    """Draws from all three generators, Gaussian numbers too, of which they keep every other one."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: torch.Tensor | None = None

    def __getitem__(self, index: int) -> Any:
        if self.prepared is None:
            self.prepared = torch.arange(3.0)
        drawn = torch.tensor([random.gauss(0, 1), np.random.randn(), float(torch.randn(1))])
        # Not by its usual name, which would be asked for: a library may do so unseen.
        info = _worker._worker_info
        return self.prepared * drawn + index, (torch.initial_seed(), info and info.seed)


class SeedingOnce(Drawing):
    """Is seeded by torch's generator in each new worker."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seeded = False

    def __getitem__(self, index: int) -> Any:
        if not self.seeded:
            random.seed(torch.initial_seed())
            self.seeded = True
        return super().__getitem__(index)


class Remembering(Rows):
    """Gives the number of samples that were read before; a list grows, and no name is rebound."""

    def __getitem__(self, index: int) -> Any:
        _READ.append(index)
        return torch.tensor(len(_READ)), 0


class OwnGenerator(Rows):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index + _GENERATOR.random()), 0


class LateGenerator(Rows):
    """Seeds a generator of its own in each new worker."""

    def __init__(self) -> None:
        super().__init__()
        self.own: np.random.Generator | None = None

    def __getitem__(self, index: int) -> Any:
        if self.own is None:
            self.own = np.random.default_rng(torch.initial_seed())
        return torch.tensor(index + self.own.random()), 0


@lru_cache(maxsize=1)
def _generator() -> random.Random:
    return random.Random(torch.initial_seed())


class HiddenGenerator(Rows):
    """Flips one sample in ten by chance: read twice, most are the same."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(-1.0 if _generator().random() > 0.9 else 1.0), 0


_READ: list[int] = []
_GENERATOR = np.random.default_rng(0)


def test_kept_workers_draw_what_new_ones_would() -> None:
    plain = trained(Everything(), {}, plan={})
    found = trained(Everything(), {}, plan=PLAN)
    assert found.batches == plain.batches
    assert found.proof["state"] == "applied" and KEPT.format(3) in found.proof["why"]
    assert len(set(plain.batches)) == len(plain.batches)


class Asking(Rows):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return torch.tensor(0 if info is None else info.seed), 0


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Counting(), {}, "reading a sample changes"),
        (Drawing(0), {"num_workers": 1}, "whose state differs"),
        (SeedingOnce(), {}, "that a process reads seeds"),
        (Remembering(), {}, "read twice with the same random numbers is not the same"),
        (OwnGenerator(), {}, "uses a random generator"),
        (LateGenerator(), {}, r"uses a random generator or an iterator \(LateGenerator.own"),
        (HiddenGenerator(), {}, "read twice with the same random numbers is not the same"),
        (Asking(), {}, "get_worker_info"),
        (Rows(), {"worker_init_fn": print}, "worker_init_fn"),
        (Rows(), {"persistent_workers": True}, "persistent_workers=True already"),
    ],
    ids=[
        "counts",
        "draws in another number",
        "seeds itself",
        "remembers",
        "has a generator",
        "makes a generator",
        "hides a generator",
        "asks for its seed",
        "sets workers up",
        "has them already",
    ],
)
def test_batches_that_hang_on_new_workers_are_refused(
    dataset: Any, options: dict[str, Any], words: str
) -> None:
    technique = get("workers")
    loader = Heard(dataset, batch_size=4, **{"num_workers": 2, **options})
    with pytest.raises(Refusal, match=words):
        technique.apply(FeedTarget(loader), technique.options(PLAN["workers"]))


def test_a_recipe_has_workers_that_stay_already() -> None:
    technique = get("workers")
    loader = Heard(TensorDataset(torch.ones(8, 1)), batch_size=4)
    with pytest.raises(Refusal, match="no use in a recipe, whose workers are started only once"):
        target = FeedTarget(loader, own_order=True)
        technique.apply(target, technique.options(PLAN["workers"]))


def test_a_draw_that_shows_late_is_told() -> None:
    found = trained(Drawing(30), {"num_workers": 1}, plan=PLAN)
    assert found.proof["state"] == "refused" and DIFFERS in found.proof["why"]
