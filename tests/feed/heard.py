"""A DataLoader whose iterators a plan hears of, without a script that is attached."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.attach.apply import PlanInProcess
from hotlap.plan import Plan

EPOCHS = 4
SAMPLES = 40


class Rows(Dataset[Any]):
    """Rows that hang on nothing but the index."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.arange(3.0) * self.scale + index, index % 3


class Heard(DataLoader[Any]):
    """Tells a plan of its iterators, as the seams do."""

    plan: PlanInProcess
    with_workers: Sequence[bool] = ()
    """Of each iterator, whether it had worker processes."""

    def _get_iterator(self) -> Any:
        make = self.plan.iterator_wanted(self)
        original = super()._get_iterator
        iterator = original() if make is None else make(self, original)
        self.plan.iterator_made(self, iterator)
        self.with_workers = [*self.with_workers, hasattr(iterator, "_workers")]
        return iterator


class Trained:
    """What a loop has seen over some epochs."""

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.with_workers: Sequence[bool] = ()
        """See `Heard`."""
        self.proof: dict[str, str] = {}


def trained(
    dataset: Any,
    options: dict[str, Any],
    *,
    plan: dict[str, Any],
    epochs: int = EPOCHS,
    until: int | None = None,
    change: Callable[[int, Any], None] | None = None,
    fill_ahead: bool = False,
    in_background: int | None = None,
) -> Trained:
    """Train without a model: batches, and the draws of a loop between them.

    From epoch `in_background` on, batches are read by another thread than the main one.
    """
    torch.manual_seed(3)
    random.seed(3)
    made = Trained()
    made_by = PlanInProcess(Plan(plan), fill_ahead=fill_ahead)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, **options}
    given = options.pop("seeded", None)
    if given is not None:
        options["generator"] = torch.Generator().manual_seed(given)
    make_sampler = options.pop("make_sampler", None)
    if make_sampler is not None:
        options |= {"sampler": make_sampler(), "shuffle": False}
    loader = Heard(dataset, **options)
    loader.plan = made_by
    for epoch in range(epochs):
        if change is not None:
            change(epoch, dataset)
        is_main = in_background is None or epoch < in_background
        for number, batch in enumerate(loader if is_main else read_in_background(loader)):
            made.batches.append(f"{batch} {torch.rand(1)} {random.random()}")
            if until is not None and number == until and epoch % 2 == 0:
                break
    made.with_workers = loader.with_workers
    if plan:
        (made.proof,) = made_by.proofs()
    return made


def read_in_background(loader: DataLoader[Any]) -> list[Any]:
    """Return the batches of an epoch, whose iterator is made here and asked in another thread."""
    iterator, found = iter(loader), []
    thread = threading.Thread(target=lambda: found.extend(iterator))
    thread.start()
    thread.join()
    return found
