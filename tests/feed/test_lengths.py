"""Batches of a token budget: every sample once, never over the budget, the same for everyone."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap.engine.build import build
from hotlap.feed.readers.threads import ReaderThreads
from hotlap.feed.samples.order import epoch_batches
from hotlap.feed.sources.lengths import LengthSource
from hotlap.feed.sources.source import Source
from hotlap.plan import Plan
from hotlap.sequences.lengths import Budget, buckets, padded_share
from hotlap.task import Task

TO = (8, 16, 32, 64)


def lengths(count: int = 300, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(2.5, 0.8, count)
    return np.clip(drawn, 1, 64).astype(np.int64)


class Sequences(Dataset):
    """Whole numbers, as many as the sample's length says; drawn anew if `noise`."""

    def __init__(self, lengths: np.ndarray, noise: bool = False) -> None:
        self.lengths, self.noise = lengths.tolist(), noise

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        length = self.lengths[index]
        ids = [(index + place) % 50 + 1 for place in range(length)]
        if self.noise:
            ids = (torch.tensor(ids) + torch.randint(0, 5, (length,))).tolist()
        return {"ids": ids, "labels": ids, "position": index}


def mean_of_rows(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(batch["ids"])
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"
    )
    return total, (batch["labels"] != -100).sum()


def network() -> nn.Module:
    return nn.Sequential(nn.Embedding(64, 8, padding_idx=0), nn.Linear(8, 64))


def make(count: int = 60, **options: Any) -> Task:
    known = lengths(count)
    given = {
        "model": network,
        "loss": mean_of_rows,
        "data": Sequences(known),
        "optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        "collate": hotlap.pad({"ids": 0, "labels": -100}),
        "lengths": known,
        "tokens_per_batch": 128,
        "epochs": 2,
    }
    return Task(**{**given, **options})


@pytest.mark.parametrize("to", [(), TO])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("tokens", [64, 100, 512, 100_000])
def test_every_sample_comes_once_and_no_batch_exceeds_the_budget(
    to: tuple[int, ...], shuffle: bool, tokens: int
) -> None:
    for seed in range(5):
        known = lengths(200, seed)
        budget = Budget(known, tokens, to)
        for epoch in range(3):
            batches = epoch_batches(budget, seed=seed, epoch=epoch, shuffle=shuffle)
            assert sorted(torch.cat(batches).tolist()) == list(range(200))
            assert len(batches) == len(budget.sizes)
            for batch in batches:
                longest = int(known[batch.numpy()].max())
                end = min(edge for edge in to or (longest,) if edge >= longest)
                assert len(batch) * end <= tokens


def test_who_is_in_a_batch_follows_from_seed_and_epoch() -> None:
    budget = Budget(lengths(), 256)

    def drawn(seed: int, epoch: int) -> str:
        batches = epoch_batches(budget, seed=seed, epoch=epoch, shuffle=True)
        return json.dumps([batch.tolist() for batch in batches])

    assert drawn(3, 1) == drawn(3, 1)
    assert len({drawn(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9
    # And not only their order: samples meet others in another epoch.
    met = [
        {frozenset(b.tolist()) for b in epoch_batches(budget, seed=0, epoch=epoch, shuffle=True)}
        for epoch in range(2)
    ]
    assert len(met[0] & met[1]) <= len(met[0]) // 10


def test_little_is_padding_where_random_batches_are_mostly_padding() -> None:
    known = lengths(20_000)
    budget = Budget(known, 1024)
    batches = epoch_batches(budget, seed=0, epoch=0, shuffle=True)
    order = torch.cat(batches).numpy()
    assert padded_share(known[order], [len(batch) for batch in batches], ()) < 0.08
    assert padded_share(known, [50] * 400, ()) > 0.5
    # As many samples as fit: hardly more batches than if nothing were padded.
    assert len(batches) <= 1.12 * known.sum() / 1024


def test_chosen_buckets_pad_least() -> None:
    known = np.array([3] * 50 + [10] * 50 + [11] * 5 + [40] * 20)
    assert buckets(known, 3) == (3, 11, 40)
    assert buckets(known, 1) == (40,)
    assert buckets(known, 9) == (3, 10, 11, 40)
    drawn = lengths(2000)
    chosen = buckets(drawn, 4)
    assert chosen[-1] == drawn.max() and len(chosen) == 4

    def padding(to: tuple[int, ...]) -> float:
        ordered = np.sort(drawn)
        return padded_share(ordered, [1] * len(ordered), to)

    for number in range(3):
        for other in (chosen[number] - 1, chosen[number] + 1):
            moved = tuple(sorted({*chosen[:number], other, *chosen[number + 1 :]}))
            assert padding(moved) >= padding(chosen)
    with pytest.raises(hotlap.UsageError, match="count=0"):
        buckets(drawn, 0)


@pytest.mark.parametrize("to", [(), TO])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        {"resident": {}},
        {"workers": {"count": 1}},
        {"workers": {"count": 2}},
        {"reader_threads": {"count": 2}},
        {"resident": {}, "reader_threads": {"count": 2}},
    ],
    ids=str,
)
def test_every_tier_gives_the_same_batches(plan: Any, noise: bool, to: Any) -> None:
    def read(plan: Any) -> tuple[str, Any]:
        data = Sequences(lengths(60), noise)
        collate = hotlap.pad({"ids": 0, "labels": -100}, to=to, lengths=True, mask=True)
        built = build(make(data=data, collate=collate, accumulate=2), Plan(plan))
        seen = [
            (samples, {name: (value.tolist(), value.stride()) for name, value in batch.items()})
            for epoch in range(2)
            for step in built.source.epoch(epoch)
            for samples, batch in step
        ]
        return repr(seen), built

    expected, _ = read({})
    batches, built = read(plan)
    assert batches == expected
    assert len(built.source.epoch(1, first=1).__next__()) == 2
    states = {row["name"]: row["state"] for row in built.applied.proofs()}
    # Threads would draw in another order; what a sample is before it draws is kept in memory.
    refused = {"reader_threads"} if noise else set()
    assert states == {name: "refused" if name in refused else "applied" for name in plan}


@pytest.mark.parametrize("tokens", [None, 128])
def test_batches_from_memory_are_cut_from_wider_rows(
    tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the cut they would all be as wide as the longest sample: the comparison sees it."""
    size = {"batch_size": 4} if tokens is None else {}
    task = make(tokens_per_batch=tokens, **size)
    widths = [
        batch["ids"].shape[1]
        for epoch in range(2)
        for ((_, batch),) in build(task, Plan({"resident": {}})).source.epoch(epoch)
    ]
    assert len(set(widths)) > 3
    # A rank without samples takes a batch that is made so.
    source = build(task, Plan({"resident": {}})).source
    next(source.epoch(0))
    shortest = int(torch.as_tensor(task.lengths).argmin())
    assert source.batch_of(torch.tensor([shortest]))["ids"].shape[1] < max(task.lengths)
    monkeypatch.setattr("hotlap.sequences.padding.Pad.cut", lambda self, wide: wide[0])
    ((_, batch),) = next(build(task, Plan({"resident": {}})).source.epoch(0))
    assert batch["ids"].shape[1] == max(task.lengths)


def test_steps_are_known_before_the_run() -> None:
    task = make(accumulate=3)
    done = hotlap.train(task, Plan())
    assert done.steps == task.total_steps == 2 * task.steps_per_epoch
    assert [epoch.steps for epoch in done.epochs] == [task.steps_per_epoch] * 2
    assert task.steps_per_epoch == -(-len(task.budget.sizes) // 3)
    steps = list(hotlap.steps(task, Plan()))
    assert sum(step.samples for step in steps) == 2 * len(task.data)
    assert max(step.samples for step in steps) <= task.logical_batch


def test_the_report_says_how_much_was_padding() -> None:
    for options in ({}, {"tokens_per_batch": None, "batch_size": 7}):
        task = make(**options)
        source = build(task, Plan()).source
        real = fed = 0
        for step in source.epoch(0):
            for _, batch in step:
                real += int((batch["labels"] != -100).sum())
                fed += batch["labels"].numel()
        done = hotlap.train(task, Plan())
        assert done.epochs[0].padding == pytest.approx(1 - real / fed)
        assert done.to_json()["epochs"][0]["padding"] == done.epochs[0].padding
    assert (
        hotlap.train(make(tokens_per_batch=None, batch_size=7, lengths=None)).epochs[0].padding
        is None
    )


def test_lengths_alone_change_nothing_that_is_learned() -> None:
    def losses(**options: Any) -> list[float]:
        task = make(tokens_per_batch=None, batch_size=7, accumulate=2, **options)
        return [float(step.loss) for step in hotlap.steps(task, Plan())]

    assert losses() == losses(lengths=None)
    assert losses() != losses(seed=1)


def test_lengths_as_a_function_are_those_of_a_sequence() -> None:
    left, right = make(), make(lengths=lambda sample: len(sample["ids"]))
    assert (left.sample_lengths == right.sample_lengths).all()
    assert left.budget.digest == right.budget.digest
    assert left.budget.digest != make(tokens_per_batch=129).budget.digest


def test_held_out_samples_are_evaluated_whole() -> None:
    held_out = Sequences(lengths(40, seed=3))
    built = build(make(held_out=held_out), Plan())
    by_hand = Source(held_out, 1, shuffle=False, collate=hotlap.pad({"ids": 0, "labels": -100}))
    total = count = 0.0
    with torch.no_grad():
        for ((_, batch),) in by_hand.epoch(0):
            value, counted = mean_of_rows(built.model, batch)
            total, count = total + float(value), count + float(counted)
    from hotlap.engine.evaluate import evaluate

    assert evaluate(built)["loss"] == pytest.approx(total / count, rel=1e-5)
    other = replace(built.task, lengths=lambda sample: len(sample["ids"]))
    assert evaluate(build(other, Plan()))["loss"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("to", [(), (128, 512, 1024)])
def test_held_out_samples_may_be_longer_than_a_batch_of_training(to: tuple[int, ...]) -> None:
    known = [400] + [100] * 19
    held_out = Sequences(np.array([600] + [100] * 5))
    options = {
        "data": Sequences(np.array(known)),
        "collate": hotlap.pad({"ids": 0, "labels": -100}, to=to),
        "tokens_per_batch": 512,
        "held_out": held_out,
    }
    for given in (known, lambda sample: len(sample["ids"])):
        source: Any = build(make(lengths=given, **options), Plan()).held_out
        batches = [batch for step in source.epoch(0) for _, batch in step]
        found = sorted(number for batch in batches for number in batch["position"].tolist())
        assert found == list(range(6))
        # The longest is measured alone, or with as many as training would have in its place.
        assert max(batch["ids"].numel() for batch in batches) <= max(1024, 512)


def test_a_held_out_sample_that_is_longer_than_all_buckets_is_refused() -> None:
    with pytest.raises(hotlap.UsageError, match="says at most 512"):
        build(
            make(
                data=Sequences(np.array([100] * 20)),
                lengths=lambda sample: len(sample["ids"]),
                collate=hotlap.pad({"ids": 0, "labels": -100}, to=(128, 512)),
                tokens_per_batch=512,
                held_out=Sequences(np.array([600])),
            ),
            Plan(),
        )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_any_sample_has_steps_without_micro_batches(rank: int) -> None:
    known = np.full(3, 5)
    source = LengthSource(
        Sequences(known),
        1,
        lengths=known,
        budget=Budget(known, 5),
        collate=hotlap.pad({"ids": 0, "labels": -100}),
        rank=rank,
        world=2,
    )
    sizes = [[samples for samples, _ in step] for step in source.epoch(0)]
    assert sizes == [[1 - rank] * (1 - rank)] * 3
    assert source.padding == (0.0 if rank == 0 else None)
    assert len(source.largest()) == 1 - rank


def test_threads_read_for_a_rank_that_has_no_sample_in_its_first_step() -> None:
    source = Source(Sequences(np.full(5, 4)), 2, collate=hotlap.pad({"ids": 0, "labels": -100}))
    source.reader_threads = 2
    steps = [(), (torch.tensor([3, 1]),)]
    threads = ReaderThreads.start_threads(source, steps)
    assert threads is not None
    threads.pool.shutdown()
    assert ReaderThreads.start_threads(source, [()]) is None


def test_micro_batches_hold_no_more_samples_than_the_plan_says() -> None:
    built = build(make(), Plan({"micro_batch": {"size": 3}}))
    sizes = [[n for n, _ in step] for step in built.source.epoch(0)]
    assert max(map(max, sizes)) == 3
    assert sorted(map(sum, sizes)) == sorted(make().budget.sizes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 4}, "was given batch_size and tokens_per_batch"),
        ({"tokens_per_batch": None}, "was given neither batch_size nor tokens_per_batch"),
        ({"tokens_per_batch": 0}, r"tokens_per_batch=0\) is not valid"),
        ({"lengths": None}, "tokens_per_batch=128 was given without lengths"),
        ({"lengths": [1, 2]}, r"lengths has shape \(2,\), but data has 60 samples"),
        ({"lengths": [0.5] * 60}, "lengths has dtype float64"),
        ({"lengths": [3] * 59 + [0]}, "sample 59 has length 0"),
        ({"lengths": lambda sample: None}, "lengths has dtype object"),
        ({"tokens_per_batch": 20}, "tokens, but tokens_per_batch=20"),
        ({"drop_last": True}, "drop_last=True cannot be used with tokens_per_batch"),
        ({"collate": hotlap.pad({"ids": 0}, to=(4, 8))}, "`to` of hotlap.pad says at most 8"),
        ({"collate": hotlap.pad({"ids": 0}, to=(256,))}, "padded to 256 as `to` of hotlap.pad"),
    ],
)
def test_a_task_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hotlap.UsageError, match=words):
        make(**options)


def test_a_length_that_a_sample_exceeds_is_seen_where_rows_are_kept() -> None:
    task = make(lengths=[5] * 60)
    with pytest.raises(hotlap.UsageError, match="say that no sample has more than 5"):
        hotlap.train(task, Plan({"resident": {}}))


def test_ranges_are_ascending_and_hold_all() -> None:
    for tokens in (64, 300, 5000):
        budget = Budget(lengths(500), tokens)
        assert all(a < b for a, b in pairwise(budget.edges.tolist()))
        assert budget.edges[-1] == budget.lengths.max()
