"""A transform draws the same for a sample, whoever reads it and whenever the run was resumed."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.engine.build import build
from hotlap.feed.samples.draws import Draws, mix_into_state
from hotlap.feed.samples.order import derive_seed
from hotlap.feed.samples.uncollation import kind_of, uncollate
from hotlap.nested import flatten_into
from hotlap.plan import Plan

EPOCHS = 3
TIERS = {
    "plain": Plan(),
    "workers 1": Plan({"workers": {"count": 1}}),
    "workers 2": Plan({"workers": {"count": 2}}),
    "threads": Plan({"reader_threads": {"count": 2}}),
    "resident": Plan({"resident": {}}),
    "resident, threads": Plan({"resident": {}, "reader_threads": {"count": 2}}),
    "micro-batches": Plan({"resident": {}, "micro_batch": {"size": 3}}),
}


class Pictures(Dataset):
    """Samples of everything that a sample may be made of."""

    def __init__(self, count: int = 41) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        pixels = torch.arange(48).add(7 * index).remainder(256).to(torch.uint8)
        return {
            "pixels": pixels.reshape(4, 4, 3).permute(2, 0, 1),
            "array": np.arange(3, dtype=np.float32) + index,
            "pair": (index % 3, index / 7),
            "flag": index % 2 == 0,
            "scalar": np.int64(index),
        }


def by_generator(sample: Any, generator: torch.Generator) -> Any:
    shift = int(torch.randint(4, (), generator=generator))
    pixels = sample["pixels"].roll(shift, 2).float()
    # A sum rounds otherwise over other strides: layouts must be those of the data set.
    pixels = pixels + pixels.div(3).mean()
    kinds = [type(sample[key]).__name__ for key in ("pixels", "array", "pair", "flag", "scalar")]
    assert kinds == ["Tensor", "ndarray", "tuple", "bool", "int64"], kinds
    assert [type(value) for value in sample["pair"]] == [int, float]
    sample["pixels"].zero_()
    return pixels, sample["array"] * sample["pair"][1], sample["pair"][0]


def by_globals(sample: Any) -> Any:
    noise = random.random() + np.random.random() + torch.rand(3, 4, 4)
    return sample["pixels"].float() + noise, sample["array"], sample["pair"][0]


class Kept(Pictures):
    """Keeps its samples, and gives them out."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = [Pictures.__getitem__(self, index) for index in range(self.count)]

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def in_place(sample: Any, generator: torch.Generator) -> Any:
    sample["pixels"].add_(int(torch.randint(4, (), generator=generator)))
    sample["array"] += 1
    return sample["pixels"].float(), sample["array"], sample["pair"][0]


def of_batches(batch: Any, draws: Draws) -> Any:
    pixels, arrays, labels = batch
    shifts = draws.integers(0, 4)
    columns = (torch.arange(4)[None] + shifts[:, None]) % 4
    pixels = pixels.gather(3, columns[:, None, None, :].expand(pixels.shape))
    return pixels * draws.uniform()[:, None, None, None], arrays + draws.uniform(3), labels


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0] / 256), batch[2])


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": network,
        "loss": loss,
        "data": Pictures(),
        "optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
        "batch_size": 8,
        "epochs": EPOCHS,
        "transform": by_generator,
    }
    return hotlap.Task(**{**given, **options})


def fed(given: hotlap.Task, plan: Plan) -> list[bytes]:
    """Return each batch of the run as bytes; micro-batches of a step are joined."""
    source = build(given, plan).source
    found = []
    for epoch in range(EPOCHS):
        for step in source.epoch(epoch):
            parts: list[list[torch.Tensor]] = []
            for _, batch in step:
                leaves: list[torch.Tensor] = []
                flatten_into(batch, leaves)
                parts.append(leaves)
            joined = [torch.cat(column) for column in zip(*parts, strict=True)]
            found.append(b"".join(leaf.numpy().tobytes() for leaf in joined))
    return found


TASKS = {
    "generator": {},
    "generator, batches": {"batch_transform": of_batches},
    "globals": {"transform": by_globals},
    "in place": {"transform": in_place, "data": Kept()},
}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("tier", list(TIERS)[1:])
def test_every_tier_gives_the_same_batches(tier: str, kind: str) -> None:
    given = task(**TASKS[kind])
    expected = fed(given, TIERS["plain"])
    assert fed(given, TIERS[tier]) == expected
    assert len(set(expected)) == len(expected)


def test_the_comparison_sees_draws_that_follow_from_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = fed(task(), Plan())
    assert fed(task(seed=1), Plan()) != expected
    monkeypatch.setattr(
        "hotlap.feed.samples.transform.derive_seed", lambda *numbers: sum(numbers) + 1
    )
    assert fed(task(), Plan()) != expected


@pytest.mark.parametrize("tier", ["resident", "threads", "resident, threads", "workers 1"])
def test_the_tiers_take_effect(tier: str) -> None:
    done = hotlap.train(task(), TIERS[tier])
    assert {row["state"] for row in done.techniques} == {"applied"}, done.techniques


@pytest.mark.parametrize("tier", ["workers 1", "threads", "resident"])
def test_training_learns_the_same_and_its_own_draws_stay(tier: str) -> None:
    def trained(plan: Plan) -> list[float]:
        return [float(step.loss) for step in hotlap.steps(task(), plan)]

    assert trained(TIERS[tier]) == trained(Plan())


@pytest.mark.parametrize("done", [1, 7, 14])
@pytest.mark.parametrize("tier", ["plain", "resident", "threads", "workers 1"])
def test_resumed_in_the_middle_of_an_epoch(tier: str, done: int, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    hotlap.train(task(epochs=None, steps=16), Plan(), run_dir=whole)
    hotlap.train(task(epochs=None, steps=done), TIERS[tier], run_dir=parts)
    hotlap.train(task(epochs=None, steps=16), TIERS[tier], run_dir=parts, resume="auto")
    ends = [find_newest(folder / "ckpt")[0] for folder in (whole, parts)]
    assert ends[0] is not None and ends[1] is not None
    for file, group in ends[0].tensors.items():
        for name, tensor in group.items():
            assert torch.equal(tensor, ends[1].tensors[file][name]), name


def test_another_transform_is_another_task(tmp_path: Path) -> None:
    hotlap.train(task(epochs=None, steps=3), run_dir=tmp_path)
    with pytest.raises(hotlap.UsageError, match="transform was by_generator, now it is by_globals"):
        hotlap.train(task(transform=by_globals), run_dir=tmp_path, resume="auto")


def fails_at_17(sample: Any, generator: torch.Generator) -> Any:
    if int(sample["scalar"]) == 17:
        raise KeyError("no such picture")
    return by_generator(sample, generator)


@pytest.mark.parametrize("tier", TIERS)
def test_an_error_in_a_transform_names_its_sample(tier: str) -> None:
    with pytest.raises(hotlap.RunError, match=r"raised KeyError for sample 17, in epoch 1"):
        fed(task(transform=fails_at_17), TIERS[tier])


class Damaged(Pictures):
    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise OSError("cannot identify image file")
        return super().__getitem__(index)


@pytest.mark.parametrize("tier", ["threads", "workers 1"])
def test_an_error_of_the_data_set_names_its_sample(tier: str) -> None:
    with pytest.raises(OSError, match="cannot identify image file") as error:
        fed(task(data=Damaged()), TIERS[tier])
    told = [str(error.value), *getattr(error.value, "__notes__", ())]
    assert any("reading sample 17 of the dataset" in text for text in told)


class Ends(Pictures):
    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise StopIteration
        return super().__getitem__(index)


@pytest.mark.parametrize("tier", TIERS)
def test_no_epoch_ends_early(tier: str) -> None:
    with pytest.raises(hotlap.RunError, match="raised StopIteration"):
        fed(task(data=Ends()), TIERS[tier])


def test_no_thread_is_left_behind() -> None:
    for step in hotlap.steps(task(epochs=None, steps=3), TIERS["threads"]):
        assert step.samples == 8
    assert not [t for t in threading.enumerate() if t.name.startswith("hotlap feed")]


def draws_elsewhere(sample: Any, generator: torch.Generator) -> Any:
    return sample["pixels"].float() + torch.rand(3, 4, 4), sample["array"], 0


@pytest.mark.parametrize("tier", ["plain", "threads", "workers 1"])
def test_draws_that_bypass_the_generator_are_refused(tier: str) -> None:
    with pytest.raises(hotlap.UsageError, match="drew from torch's global RNG"):
        fed(task(transform=draws_elsewhere), TIERS[tier])


class Drawing(Pictures):
    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "array": torch.rand(3).numpy()}


class DrawsSometimes(Pictures):
    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return {**sample, "array": torch.rand(3).numpy()} if index % 5 == 3 else sample


@pytest.mark.parametrize("data", [Drawing(), DrawsSometimes()])
@pytest.mark.parametrize("tier", ["workers 2", "resident"])
def test_a_data_set_that_draws_gives_the_same_on_every_tier(tier: str, data: Any) -> None:
    expected = fed(task(data=data), Plan())
    assert fed(task(data=data), TIERS[tier]) == expected


@pytest.mark.parametrize("tier", ["threads", "resident, threads"])
def test_draws_that_threads_see_too_late_end_the_run(tier: str) -> None:
    with pytest.raises(
        hotlap.RunError, match="draws from torch's global RNG when a sample is read"
    ):
        fed(task(data=DrawsSometimes()), TIERS[tier])
    # A model that draws is not taken for the data set.
    hotlap.train(task(epochs=1), TIERS[tier])


class DrawsInThreads(Pictures):
    """Slow to read, and drawing, but for the thread that looks."""

    def __getitem__(self, index: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.002)
            torch.rand(1)
        return super().__getitem__(index)


def slowly(sample: Any, generator: torch.Generator) -> Any:
    time.sleep(0.002)
    return by_generator(sample, generator)


def test_what_other_threads_draw_is_not_taken_for_a_transforms() -> None:
    assert fed(task(data=DrawsInThreads(), transform=slowly), TIERS["threads"])


class SharesAPlace(Pictures):
    """What a file that is open in several threads is like."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if threading.current_thread() is not threading.main_thread():
            sample["array"] = sample["array"] + 1
        return sample


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": by_globals}, "write it as transform"),
        ({"data": Drawing()}, "reading a sample draws from torch's global RNG"),
        ({"data": SharesAPlace()}, "is different when several threads read"),
    ],
)
def test_threads_refuse_what_they_would_change(options: dict[str, Any], words: str) -> None:
    given = task(epochs=1, **options)
    done = hotlap.train(given, TIERS["threads"])
    assert done.techniques[0]["state"] == "refused"
    assert words in done.techniques[0]["why"]
    assert done.epochs[0].loss == hotlap.train(given, Plan()).epochs[0].loss


def sizes(sample: Any, generator: torch.Generator) -> Any:
    return sample.float().sum(), 0, 0


class OfAllSizes(Pictures):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(1 + index % 3)


def test_samples_that_cannot_be_stacked_are_left_apart() -> None:
    given = task(data=OfAllSizes(), transform=sizes)
    assert fed(given, TIERS["resident"]) == fed(given, Plan())


@pytest.mark.parametrize("given", [3, "crop"])
@pytest.mark.parametrize("name", ["transform", "batch_transform"])
def test_what_cannot_be_called_is_refused(name: str, given: Any) -> None:
    with pytest.raises(hotlap.UsageError, match=f"{name}=.* is not callable"):
        task(**{name: given})


def test_a_transform_of_three_arguments_is_refused() -> None:
    with pytest.raises(hotlap.UsageError, match="takes 3 arguments"):
        build(task(transform=lambda a, b, c: a), Plan())


def test_rows_of_draws_follow_from_the_sample_alone() -> None:
    state = derive_seed(5, 1)
    together = Draws(state, [4, 9, 2])
    alone = Draws(state, [9])
    for shape in ((), (2,), (2, 3)):
        assert torch.equal(together.uniform(*shape)[1], alone.uniform(*shape)[0])
        assert torch.equal(together.integers(-3, 5, *shape)[1], alone.integers(-3, 5, *shape)[0])
    again = Draws(state, [9])
    assert not torch.equal(again.uniform(4), again.uniform(4))


def test_draws_are_spread_evenly() -> None:
    draws = Draws(derive_seed(0, 0), range(4000))
    numbers = draws.uniform(50)
    assert numbers.dtype == torch.float32 and numbers.min() >= 0 and numbers.max() < 1
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.005)
    assert numbers.var().item() == pytest.approx(1 / 12, abs=0.002)
    # Neighbours, in either direction, have nothing in common.
    centred = numbers - numbers.mean()
    assert abs((centred[1:] * centred[:-1]).mean().item()) < 0.001
    assert abs((centred[:, 1:] * centred[:, :-1]).mean().item()) < 0.001
    dice = draws.integers(1, 7, 50).flatten()
    counts = torch.bincount(dice, minlength=7)[1:]
    assert counts.sum() == 200_000 and (counts / 200_000 - 1 / 6).abs().max() < 0.005
    with pytest.raises(ValueError, match="low < high"):
        draws.integers(2, 2)


def test_the_turn_for_arrays_is_that_for_numbers() -> None:
    start = np.uint64(0x9E3779B97F4A7C15)
    state = mix_into_state(mix_into_state(start, np.uint64(17)), np.uint64(4))
    assert int(state) >> 1 == derive_seed(17, 4)


@pytest.mark.parametrize(
    "samples",
    [
        [1, 2],
        [0.5, -0.0],
        [True, False],
        [np.float32(1), np.float32(2)],
        [torch.tensor(3), torch.tensor(4)],
        [(1, [2.0, torch.ones(2, 3).t()]), (3, [4.0, torch.zeros(2, 3).t()])],
        [
            torch.arange(6.0).view(1, 3, 2).mT.expand(4, -1, -1),
            torch.ones(1, 3, 2).mT.expand(4, 2, 3),
        ],
        [torch.tensor(1.0).expand(2, 1, 3), torch.tensor(2.0).expand(2, 1, 3)],
        [torch.ones(2, 1).expand(2, 0), torch.zeros(2, 1).expand(2, 0)],
    ],
)
def test_what_was_stacked_is_had_back(samples: list[Any]) -> None:
    from torch.utils.data import default_collate

    from hotlap.feed.purity.same_samples import samples_equal

    kind = kind_of(samples[0])
    back = list(uncollate(kind, default_collate(samples)))
    assert [kind_of(sample) for sample in back] == [kind_of(sample) for sample in samples]
    assert all(map(samples_equal, back, samples))


@pytest.mark.parametrize(
    "sample", ["a word", None, 2**63, torch.ones(2, requires_grad=True), np.ones(4)[::-1], ()]
)
def test_what_could_not_be_had_back_is_known(sample: Any) -> None:
    assert kind_of(sample) is None


class Counting(Pictures):
    def __getitem__(self, index: int) -> Any:
        self.reads = getattr(self, "reads", 0) + 1
        return super().__getitem__(index)


class Caching(Pictures):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


def test_threads_do_not_serve_who_is_changed_by_reading() -> None:
    with pytest.raises(hotlap.UsageError, match=r"the dataset changes Counting\.reads"):
        fed(task(data=Counting()), TIERS["threads"])


@pytest.mark.parametrize("tier", ["threads", "resident"])
def test_who_keeps_what_it_read_is_served(tier: str) -> None:
    built = build(task(data=Caching()), TIERS[tier])
    for epoch in range(EPOCHS):
        for _ in built.source.epoch(epoch):
            pass
    (proof,) = built.applied.proofs()
    assert proof["state"] == "applied", proof
