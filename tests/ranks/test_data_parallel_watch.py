"""What is seen of a `DistributedDataParallel`, of an optimizer beside it, and of a sampler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hotlap.attach.data_parallel import Wrappers
from hotlap.attach.on_ranks import read_log, time_sums
from hotlap.attach.outside_parameters import outside_of
from hotlap.diagnosis.causes import INTERVENTIONS
from hotlap.plan import Plan
from hotlap.task import GradientSums
from hotlap.techniques.applying import Applied
from hotlap.trace.facts import loader_facts
from hotlap.trace.loaders import WatchedLoader


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Let this process be the only rank of a group."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


class Skipping(nn.Module):
    """Two layers, of which the second is left out now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, skips: bool) -> torch.Tensor:
        x = self.first(x)
        return x if skips else self.second(x)


def train(wrappers: Wrappers, model: nn.Module, skipping: list[bool], every: int = 1) -> Any:
    """Take a step after `every` micro-batches, and return what was seen."""
    time_sums(model)
    wrappers.add(model)
    steps = 0
    for number, skips in enumerate(skipping, 1):
        loss = model(torch.ones(2, 4), skips=skips).sum()
        wrappers.forward_ends(model)
        wrappers.backward_begins()
        loss.backward()
        if number % every == 0:
            steps += 1
            wrappers.step_done(steps)
    return wrappers.facts(steps)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("skips", [False, True])
def test_a_search_is_told_with_what_it_has_found(skips: bool) -> None:
    model = DistributedDataParallel(Skipping(), find_unused_parameters=True)
    # The wrapper notes a step when the next one begins.
    sums = train(Wrappers(), model, [False, skips, False, False])
    assert sums.searches and sums.looks >= 2
    # A weight of 16 numbers and a bias of 4.
    assert sums.unused_bytes == (80 if skips else 0)


@pytest.mark.usefixtures("group")
def test_sums_are_counted_by_forwards_that_prepare_for_one() -> None:
    model = DistributedDataParallel(Skipping())
    sums = train(Wrappers(), model, [False] * 8, every=4)
    assert isinstance(sums, GradientSums)
    assert (sums.per_step, sums.searches, sums.looks) == (4.0, False, 0)
    with model.no_sync():
        assert train(Wrappers(), model, [False] * 8, every=4).per_step == 0.0
    assert train(Wrappers(), nn.Linear(4, 4), []) is None


@pytest.mark.usefixtures("group")
def test_what_a_search_and_sums_cost_is_measured_without_them() -> None:
    plan = Plan({"no_search": {}, "fewer_sums": {"every": 4}})
    applied = Applied(plan, INTERVENTIONS)
    switched = applied.start("cpu")
    try:
        model = DistributedDataParallel(Skipping(), find_unused_parameters=True)
        assert not model.find_unused_parameters
        for _ in range(8):
            model(torch.ones(2, 4), skips=False).sum().backward()
        assert model.require_backward_grad_sync
        # Counted from 0, by forwards that prepare for a sum: two of eight.
        assert read_log(model)["iteration"] == 1
        states = {row["name"]: (row["state"], row["why"]) for row in applied.proofs()}
        assert states["no_search"][0] == "applied"
        assert states["fewer_sums"] == ("applied", "6 backwards without a sum")
    finally:
        switched.undo()
    assert DistributedDataParallel(Skipping(), find_unused_parameters=True).find_unused_parameters


def test_an_intervention_that_found_nothing_to_do_has_no_effect() -> None:
    applied = Applied(Plan({"no_search": {}, "fewer_sums": {"every": 4}}), INTERVENTIONS)
    applied.start("cpu").undo()
    assert [row["state"] for row in applied.proofs()] == ["no_effect", "no_effect"]


def test_parameters_that_an_optimizer_misses_are_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1] = nn.Linear(4, 3)
    model(torch.ones(1, 4)).sum().backward()
    found = outside_of(early, [model], [early])
    assert (found.lost, found.left, found.left_in) == (2, 2, "Sequential")
    late = torch.optim.SGD(model.parameters(), lr=0.1)
    assert outside_of(late, [model], [late]).lost == 0
    # What another optimizer trains, or nobody is to train, is not missed.
    other = torch.optim.SGD(model[1].parameters(), lr=0.1)
    assert outside_of(early, [model], [early, other]).left == 0
    model.zero_grad()
    model[1].requires_grad_(False)
    model(torch.ones(1, 4)).sum().backward()
    assert outside_of(early, [model], [early]).left == 0


class Hidden(nn.Module):
    """Keeps layers where `parameters()` does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.heads = {"a": nn.Linear(4, 1)}

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, *self.layers):
            given = layer(given)
        return self.heads["a"](given)


def test_layers_in_a_plain_list_are_missed_by_the_optimizer() -> None:
    model = Hidden()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    found = outside_of(optimizer, [model], [optimizer])
    assert (found.left, found.left_in) == (6, "Hidden")
    # A teacher, kept in a list so that it is no part of the model, has no gradients.
    model.layers[1].requires_grad_(False)
    model.layers[1].zero_grad()
    assert outside_of(optimizer, [model], [optimizer]).left == 4


def test_what_a_script_updates_by_itself_is_not_missed() -> None:
    table, lost, head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
    model = nn.Sequential(table, lost, head)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    first = outside_of(optimizer, [model], [optimizer])
    assert first.left == 4
    with torch.no_grad():
        table.bias -= 0.1
    table.weight.data.add_(1.0)
    found = first.look_again()
    assert (found.left, found.left_in) == (2, "Sequential")


def test_the_order_of_a_pass_follows_from_seed_and_epoch_of_its_sampler() -> None:
    data = TensorDataset(torch.arange(8.0))
    sampler = DistributedSampler(data, num_replicas=2, rank=0, seed=3)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    known = WatchedLoader(loader)
    known.begin(0, loader)
    # A pass without a step, as an evaluation makes it.
    known.begin(2, loader)
    known.begin(2, loader)
    sampler.set_epoch(1)
    known.begin(4, loader)
    assert loader_facts(known, 6).orders == ((3, 0), (3, 0), (3, 1))
    plain = DataLoader(data, batch_size=2, shuffle=True)
    known = WatchedLoader(plain)
    known.begin(0, plain)
    assert loader_facts(known, 6).orders == ()
