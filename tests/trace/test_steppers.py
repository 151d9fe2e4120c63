"""Which optimizer takes the place of which."""

from dataclasses import replace

import torch
from torch import nn

from hotlap.trace.facts import optimizer_facts
from hotlap.trace.steppers import Stepper, Steppers


def stepped(steppers: Steppers, optimizer: torch.optim.Optimizer, where: str) -> Stepper:
    found = steppers.find(optimizer)
    if found is None:
        found = steppers.place(optimizer, optimizer_facts(optimizer, where))
    found.steps += 1
    return found


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def test_an_optimizer_that_is_made_again_goes_on_where_the_old_one_was() -> None:
    steppers, model = Steppers(), nn.Linear(2, 2)
    for _ in range(3):
        optimizer = adam(model)
        for _ in range(5):
            stepped(steppers, optimizer, "a.py:9")
    (only,) = steppers.all
    assert only.steps == 15


def test_a_new_model_with_its_optimizer_takes_the_place_of_the_one_before() -> None:
    steppers, kept = Steppers(), []
    for _ in range(3):
        kept.append(adam(nn.Linear(2, 2)))
        for _ in range(5):
            stepped(steppers, kept[-1], "a.py:9")
    assert len(steppers.all) == 1


def test_optimizers_side_by_side_stay_two() -> None:
    for places in (("a.py:7", "a.py:9"), ("a.py:9", "a.py:9")):
        steppers = Steppers()
        first, second = adam(nn.Linear(2, 2)), adam(nn.Linear(2, 2))
        for _ in range(5):
            stepped(steppers, first, places[0])
            stepped(steppers, second, places[1])
        assert [stepper.steps for stepper in steppers.all] == [5, 5]


def test_a_generator_that_steps_every_fifth_time_is_another_one() -> None:
    steppers = Steppers()
    critic, generator = adam(nn.Linear(2, 2)), adam(nn.Linear(2, 2))
    for step in range(10):
        stepped(steppers, critic, "a.py:7")
        if step % 5 == 4:
            stepped(steppers, generator, "a.py:12")
    assert [stepper.steps for stepper in steppers.all] == [10, 2]


def test_sparse_gradients_are_seen() -> None:
    table = nn.Embedding(10, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1])).sum().backward()
    facts = optimizer_facts(optimizer, "a.py:1")
    assert facts.sparse
    table.zero_grad()
    assert facts == replace(optimizer_facts(optimizer, "a.py:1"), sparse=True)
