"""A run learns what its task says, whatever reads the samples and whoever looks on."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

import hotlap
from hotlap.engine.build import build
from hotlap.feed.memory import item_parts
from hotlap.feed.samples.order import epoch_order
from hotlap.feed.sources.source import Source
from hotlap.plan import Plan
from hotlap.task import Task
from tests.engine.lattice import data, mean, model

PLAIN = Plan()
RESIDENT = Plan({"resident": {}})


class Augmented(Dataset):
    """Draws from all three global generators for each sample, and is slow to notice nothing."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() + np.random.random() + torch.rand(1).item()
        return torch.tensor([float(index), drawn, 1.0, 0.0]), torch.tensor([1.0, drawn])


class Fixed(Dataset):
    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), 0.5, 1.0, 0.0]), torch.tensor([1.0, index / 2])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def make(**options: Any) -> Task:
    given = {
        "model": network,
        "loss": mean,
        "data": Fixed(),
        "optimizer": adam,
        "batch_size": 8,
        "epochs": 3,
    }
    return Task(**{**given, **options})


def weights(trained: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_it_learns_what_the_loop_that_one_writes_by_hand_learns() -> None:
    task = make(seed=3)
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    by_hand = network()
    optimizer = adam(by_hand)
    for epoch in range(3):
        for positions in epoch_order(21, seed=3, epoch=epoch, shuffle=True).split(8):
            batch = default_collate([task.data[i] for i in positions.tolist()])
            optimizer.zero_grad()
            mean(by_hand, batch).backward()
            optimizer.step()
    expected = [parameter.detach() for parameter in by_hand.parameters()]
    assert same(weights(hotlap.train(task, PLAIN)), expected)
    assert same(weights(hotlap.train(task)), expected)
    assert not same(weights(hotlap.train(replace(task, seed=4))), expected)


@pytest.mark.parametrize("dataset", [Fixed(), Augmented()], ids=["fixed", "augmented"])
@pytest.mark.parametrize("tier", ["resident", "workers 1", "workers 2", "fetched"])
def test_every_tier_gives_the_same_batches_and_leaves_the_models_draws_alone(
    dataset: Dataset, tier: str
) -> None:
    def read(name: str) -> tuple[list[Any], torch.Tensor]:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        name, _, count = name.partition(" ")
        options = {"resident": {"resident": {}}, "workers": {"workers": {"count": int(count or 1)}}}
        built = build(make(data=dataset), Plan(options.get(name, {})))
        states = torch.get_rng_state()
        seen = [batch for epoch in range(3) for step in built.source.epoch(epoch) for batch in step]
        assert torch.equal(torch.get_rng_state(), states)
        return seen, states

    expected, _ = read("fetched")
    assert repr(read(tier)[0]) == repr(expected)
    other = [b for epoch in range(3) for s in Source(dataset, 8, seed=9).epoch(epoch) for b in s]
    assert repr(other) != repr(expected)


def test_a_data_set_that_draws_before_all_else_is_not_kept_in_memory() -> None:
    done = hotlap.train(make(data=Augmented()), RESIDENT)
    assert done.techniques[0]["state"] == "refused"
    assert "draws random numbers in its first statement" in done.techniques[0]["why"]


class Decoded(Fixed):
    """Draws once a sample is decoded."""

    def __getitem__(self, index: int) -> Any:
        row = torch.full((4,), float(index))
        row += random.random() + np.random.random() + torch.rand(4)
        return row, torch.tensor([1.0, index / 2])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_a_sample_is_before_it_draws_is_kept_in_memory(
    accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_parts, "_WORTH_IT", 1e9)
    task = make(data=Decoded(), epochs=6, accumulate=accumulate, batch_size=8 // accumulate)
    plain = weights(hotlap.train(task, PLAIN))
    done = hotlap.train(task, RESIDENT)
    assert same(weights(done), plain)
    (row,) = done.techniques
    assert row["state"] == "applied" and "computes before" in row["why"]
    served = re.search(r"memory for (\d+) samples", row["why"])
    assert served is not None and int(served[1]) >= 3 * 21


def test_entering_an_epoch_in_the_middle_gives_what_is_left_of_it() -> None:
    source = Source(Augmented(), 8, seed=5)
    whole = list(source.epoch(2))
    assert repr(list(Source(Augmented(), 8, seed=5).epoch(2, first=1))) == repr(whole[1:])


def test_evaluation_changes_nothing_of_the_training() -> None:
    without = weights(hotlap.train(make()))
    held_out = hotlap.train(make(held_out=Augmented()))
    assert same(weights(held_out), without)
    assert all("loss" in epoch.held_out for epoch in held_out.epochs)


@pytest.mark.parametrize("drop_last", [False, True])
def test_accumulation_is_the_larger_batch(drop_last: bool) -> None:
    whole = make(model=model, data=data(50), batch_size=16, drop_last=drop_last)
    split = replace(whole, batch_size=4, accumulate=4)
    left, right = hotlap.train(whole), hotlap.train(split)
    assert left.steps == right.steps == 3 * (3 if drop_last else 4)
    for a, b in zip(weights(left), weights(right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("per", "expected"), [("step", 9), ("epoch", 3)])
def test_schedules_step_per_optimizer_step_or_per_epoch(per: Any, expected: int) -> None:
    seen: list[Any] = []

    def schedule(optimizer: Any) -> Any:
        seen.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        return seen[-1]

    hotlap.train(make(schedule=schedule, schedule_per=per, accumulate=1))
    assert seen[0].last_epoch == expected


def test_a_step_that_was_left_out_does_not_move_the_schedule() -> None:
    seen: list[Any] = []

    def schedule(optimizer: Any) -> Any:
        seen.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        return seen[-1]

    calls = iter(range(100))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, batch) * (float("nan") if next(calls) == 4 else 1.0)

    done = hotlap.train(make(schedule=schedule, loss=loss, data=data(24)))
    assert done.skipped_steps == 1
    assert seen[0].last_epoch == 8


def test_the_users_own_loop_is_the_same_run() -> None:
    seen = [
        (step.number, step.epoch, step.ends_epoch, float(step.loss))
        for step in hotlap.steps(make())
    ]
    assert [row[:3] for row in seen] == [
        (epoch * 3 + k, epoch + 1, k == 3) for epoch in range(3) for k in (1, 2, 3)
    ]
    final = hotlap.train(make()).epochs[-1].loss
    sizes = [8, 8, 5]
    mine = sum(n * row[3] for n, row in zip(sizes, seen[-3:], strict=True)) / 21
    assert mine == pytest.approx(final, rel=1e-6)


def test_steps_end_a_run_in_the_middle_of_an_epoch() -> None:
    done = hotlap.train(make(epochs=None, steps=4))
    assert done.steps == 4
    assert [epoch.steps for epoch in done.epochs] == [3, 1]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_master_weights_train_in_bfloat16_and_leave_a_float32_model(accumulate: int) -> None:
    kind = make(model=model, data=data(64), accumulate=accumulate, epochs=4)
    exact, narrow = hotlap.train(kind), hotlap.train(kind, Plan({"master_weights": {}}))
    assert narrow.techniques[0]["state"] == "applied"
    for a, b in zip(weights(narrow), weights(exact), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
        assert not torch.equal(a, b)


def test_autocast_takes_effect_and_refuses_where_it_cannot() -> None:
    done = hotlap.train(make(), Plan({"autocast": {}}))
    assert done.techniques == (
        {"name": "autocast", "state": "applied", "why": done.techniques[0]["why"]},
    )


def test_an_evaluation_before_the_first_step_does_not_hide_autocast() -> None:
    done = hotlap.train(make(held_out=data(16)), Plan({"autocast": {}}))
    assert done.techniques[0]["state"] == "applied", done.techniques
    assert done.techniques[0]["why"] == "the first layer's output is bfloat16"


def test_autocast_is_seen_where_the_first_layer_is_never_called() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.last = nn.MultiheadAttention(4, 2), nn.Linear(4, 2)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.last(self.attention(values, values, values)[0])

    done = hotlap.train(make(model=Attending), Plan({"autocast": {}}))
    assert done.techniques[0]["state"] == "applied", done.techniques
    assert not any(module._forward_hooks for module in done.model.modules())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"accumulate": True}, "accumulate=True"),
        ({"epochs": None}, "neither epochs nor steps"),
        ({"steps": 3}, "was given epochs and steps"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"data": data(0)}, "data is empty"),
        ({"data": iter([])}, "data is a list_iterator"),
        ({"schedule_per": "batch"}, "Expected: epoch, step"),
        ({"batch_size": 22, "drop_last": True}, "drop_last"),
        ({"loss": None}, "loss=None is not callable"),
    ],
)
def test_a_task_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hotlap.UsageError, match=words):
        make(**options)


def test_batch_norm_in_split_steps_is_refused_unless_it_is_meant() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    with pytest.raises(hotlap.UsageError, match="splits_statistics=True"):
        hotlap.train(make(model=normed, accumulate=2))
    hotlap.train(make(model=normed, accumulate=2, splits_statistics=True))


def test_a_data_set_that_stops_too_early_is_an_error() -> None:
    class Short(Fixed):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise StopIteration
            return super().__getitem__(index)

    for plan in (PLAIN, Plan({"workers": {"count": 1}})):
        with pytest.raises(hotlap.RunError, match="StopIteration"):
            hotlap.train(make(data=Short()), plan)


def test_a_label_out_of_range_is_explained() -> None:
    class Wrong(Fixed):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[0], 2 if index == 5 else 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(hotlap.UsageError, match="label 2 is out of range"):
        hotlap.train(make(data=Wrong(), loss=loss))


@pytest.mark.parametrize("count", [int, torch.tensor, lambda n: torch.tensor(n).to(torch.int8)])
def test_the_loss_of_an_epoch_weighs_what_the_loss_counts_not_samples(count: Any) -> None:
    values = [torch.full((10 + index % 5,), float(index)) for index in range(12)]

    def loss(model: Any, batch: Any) -> Any:
        total = sum((model.weight * value).sum() for value in batch)
        return total, count(sum(len(value) for value in batch))

    def model() -> Any:
        made = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(made.weight)
        return made

    done = hotlap.train(
        hotlap.Task(
            model=model,
            loss=loss,
            data=values,
            held_out=values,
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.0),
            collate=list,
            batch_size=4,
            epochs=1,
        ),
        device="cpu",
    )
    whole = torch.cat(values)
    assert done.epochs[0].loss == pytest.approx(float(whole.mean()))
    assert done.held_out["loss"] == pytest.approx(float(whole.mean()))


def evaluated(**options: Any) -> Any:
    passes = []

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            passes.append(self.training)
            return super().forward(x)

    rows = [torch.full((2,), float(index)) for index in range(12)]
    done = hotlap.train(
        hotlap.Task(
            model=lambda: Model(2, 1),
            loss=lambda model, batch: model(batch).square().mean(),
            data=rows,
            held_out=rows[:10],
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
            batch_size=4,
            epochs=1,
            **options,
        ),
        device="cpu",
    )
    return done.held_out, passes.count(False)


def test_what_is_measured_together_goes_forward_once() -> None:
    def measure(model: Any, batch: Any) -> dict[str, Any]:
        y = model(batch)
        return {"loss": y.square().mean(), "above": ((y > 0).sum(), y.numel())}

    alone, passes = evaluated(metrics={"above": lambda m, b: ((m(b) > 0).sum(), len(b))})
    together, fewer = evaluated(evaluate=measure)
    assert together == alone
    # Three batches, and the first of them before the first step.
    assert (passes, fewer) == (2 * 4, 4)


def test_evaluate_is_a_function_that_gives_a_dictionary_and_stands_alone() -> None:
    with pytest.raises(hotlap.UsageError, match="Expected: a dict"):
        evaluated(evaluate=lambda model, batch: model(batch).mean())
    with pytest.raises(hotlap.UsageError, match="both evaluate and metrics"):
        evaluated(evaluate=print, metrics={"a": print})
    with pytest.raises(hotlap.UsageError, match="evaluate='loss' is not callable"):
        evaluated(evaluate="loss")


def test_a_run_in_a_thread_of_its_own_keeps_its_samples() -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(hotlap.train, make(), RESIDENT).result()
    assert done.techniques[0]["state"] == "applied", done.techniques
    assert same(weights(done), weights(hotlap.train(make(), RESIDENT)))


def test_a_plan_may_name_techniques_from_outside() -> None:
    plan, where = Plan({"drop": {}}), "tests.lab.planted:DROP"
    with pytest.raises(hotlap.PlanError, match="'drop' is not known"):
        hotlap.train(make(), plan)
    done = hotlap.train(make(), plan, techniques=(where,))
    assert done.techniques[0]["state"] == "applied"
