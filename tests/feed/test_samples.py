"""Data sets of Hugging Face and of torchvision's kind are taken as they are."""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, Subset

import hotlap
from hotlap.engine.build import build
from hotlap.feed.samples.order import epoch_order, through_buffer
from hotlap.feed.sources.source import Source
from hotlap.plan import Plan
from hotlap.task import Task

ROWS = {
    "ids": [[(7 * row + place) % 30 for place in range(1 + row % 9)] for row in range(50)],
    "pixels": [[row / 50, 0.25, 1.0] for row in range(50)],
    "label": [row % 3 for row in range(50)],
}
PLANS = ({}, {"resident": {}}, {"workers": {"count": 1}})


class Table:
    """The protocol of `datasets.Dataset`: columns, rows as dicts, `__getitems__`, formats."""

    def __init__(self, columns: dict[str, list[Any]], kind: str | None = None) -> None:
        self.columns, self.kind = columns, kind
        self.calls = {"one": 0, "together": 0}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return self._row(key)

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        return [self._row(key) for key in keys]

    def _row(self, key: int) -> dict[str, Any]:
        row = {name: column[key] for name, column in self.columns.items()}
        if self.kind != "torch":
            return row
        return {name: torch.tensor(value) for name, value in row.items()}

    def with_format(self, kind: str) -> "Table":
        return Table(self.columns, kind)


def table(kind: str | None, real: bool) -> Any:
    if not real:
        return Table(ROWS, kind)
    datasets = pytest.importorskip("datasets", reason="needs `pip install datasets`")
    made = datasets.Dataset.from_dict(ROWS)
    return made.with_format(kind) if kind else made


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    pixels = batch["pixels"]
    if isinstance(pixels, list):
        # torch's default collation of lists: one tensor for each place.
        pixels = torch.stack(pixels, dim=1).float()
    return nn.functional.cross_entropy(model(pixels), batch["label"])


def task(data: Any, **options: Any) -> Task:
    given = {
        "model": network,
        "loss": loss,
        "data": data,
        "optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        "batch_size": 8,
        "epochs": 2,
        "collate": hotlap.pad({"ids": 0}),
    }
    return Task(**{**given, **options})


@pytest.mark.parametrize("kind", [None, "torch"])
@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "datasets"])
def test_a_table_of_hugging_face_is_a_data_set(kind: str | None, real: bool) -> None:
    data = table(kind, real)
    losses = [hotlap.train(task(data), Plan(plan)).epochs[-1].loss for plan in PLANS]
    assert len(set(losses)) == 1 and losses[0] < 2
    names = ("pixels", "label")
    if real:
        plain = data.select_columns(list(names))
    else:
        plain = Table({name: ROWS[name] for name in names}, kind)
    states = []
    for plan in PLANS[:2]:
        done = hotlap.train(task(plain, collate=None), Plan(plan))
        assert done.epochs[-1].loss == losses[0]
        states += [row["state"] for row in done.techniques]
    assert states == ["applied"]


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "datasets"])
def test_rows_are_read_together_and_are_those_that_come_one_by_one(real: bool) -> None:
    together = Source(table("torch", real), 8, collate=hotlap.pad({"ids": 0}))
    one_by_one = Source(table("torch", real), 8, collate=hotlap.pad({"ids": 0}))
    one_by_one._together = None
    for epoch in range(2):
        assert repr(list(together.epoch(epoch))) == repr(list(one_by_one.epoch(epoch)))
    assert together._together is not None
    # The first batch of each epoch is read both ways.
    assert together._together.batches == 2 * 6


class Whole(Table):
    """Transforms what it is asked for as a whole, as `with_transform` does."""

    def __init__(self, transform: Callable[[list[Any]], list[Any]], after: int = 0) -> None:
        super().__init__({"pixels": ROWS["pixels"], "label": ROWS["label"]})
        self.transform, self.after = transform, after

    def __getitem__(self, key: Any) -> Any:
        return self.transform([self._row(key)])[0]

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return self.transform([self._row(key) for key in keys])


def of_the_batch(rows: list[Any]) -> list[Any]:
    return [{**row, "pixels": [*row["pixels"][:2], float(len(rows))]} for row in rows]


def drawing(rows: list[Any]) -> list[Any]:
    return [{**row, "pixels": torch.rand(3)} for row in rows] if len(rows) > 1 else rows


def fewer(rows: list[Any]) -> list[Any]:
    return rows[:3]


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (of_the_batch, "unlike `__getitem__`"),
        (drawing, "draws random numbers"),
        (fewer, "gave 3 samples, not 8"),
    ],
)
def test_rows_that_differ_when_they_are_read_together_are_read_one_by_one(
    transform: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hotlap")
    source = Source(Whole(transform), 8)
    expected = Source(Whole(transform), 8)
    expected._together = None
    states = torch.get_rng_state()
    assert repr(list(source.epoch(0))) == repr(list(expected.epoch(0)))
    assert torch.equal(torch.get_rng_state(), states)
    assert source._together is not None and words in str(source._together.refused)
    assert words in caplog.text


def test_rows_that_begin_to_differ_end_the_run() -> None:
    data = Whole(lambda rows: rows)
    source = Source(data, 8)
    list(source.epoch(0))
    data.transform = of_the_batch
    with pytest.raises(hotlap.RunError, match="after 6 batches in which `__getitems__` agreed"):
        list(source.epoch(1))


@dataclass
class Row:
    pixels: torch.Tensor
    label: int


class Kinds(Dataset[Any]):
    """Samples of one kind, made anew each time."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def sparse(index: int) -> torch.Tensor:
    return torch.eye(3).mul(index).to_sparse()


KINDS: dict[str, tuple[Callable[[int], Any], str | None]] = {
    "dataclasses": (lambda index: Row(torch.arange(3.0) + index, index), None),
    "dataclasses that differ": (lambda index: Row(torch.ones(3), next(CALLS)), "unlike"),
    "conjugated": (lambda index: torch.full((3,), index * 1j).conj(), None),
    "negated": (lambda index: torch.full((3,), index * 1j).conj().imag, None),
    "sparse": (sparse, "of Subset cannot be compared"),
}
CALLS = itertools.count()


@pytest.mark.parametrize(("make", "words"), KINDS.values(), ids=KINDS)
def test_samples_of_any_kind_are_compared_or_read_one_by_one(
    make: Callable[[int], Any], words: str | None
) -> None:
    source = Source(Subset(Kinds(make), range(20)), 8, collate=list)
    plain = Source(Subset(Kinds(make), range(20)), 8, collate=list)
    plain._together = None
    found, expected = list(source.epoch(0)), list(plain.epoch(0))
    assert words == "unlike" or repr(found) == repr(expected)
    assert source._together is not None
    refused = source._together.refused
    assert refused is None if words is None else words in str(refused)


def test_samples_that_cannot_be_compared_later_are_read_one_by_one_from_then_on() -> None:
    data = Kinds(lambda index: torch.full((3,), index))
    source = Source(Subset(data, range(20)), 8, shuffle=False, collate=list)
    list(source.epoch(0))
    data.make = sparse
    assert [n for step in source.epoch(1) for n, _ in step] == [8, 8, 4]
    assert source._together is not None
    assert "cannot be compared" in str(source._together.refused)


def test_a_subset_reads_together_what_it_is_a_subset_of() -> None:
    source = Source(Subset(Table(ROWS), range(10, 40)), 8, collate=hotlap.pad({"ids": 0}))
    seen = [batch["label"] for ((_, batch),) in source.epoch(0)]
    assert sorted(torch.cat(seen).tolist()) == sorted(ROWS["label"][10:40])
    assert source._together is not None and source._together.batches == 3


class Images(Dataset):
    """The protocol of torchvision: root, transform, target_transform, PIL samples."""

    def __init__(
        self,
        root: Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.samples = sorted(root.glob("*.png"))
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, target = Image.open(self.samples[index]).convert("RGB"), index % 3
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)


class Resize:
    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        return image.resize(self.size)


class RandomHorizontalFlip(nn.Module):
    def forward(self, image: Any) -> Any:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < 0.5 else image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    return tmp_path


def of_images(data: Dataset, **options: Any) -> Task:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return task(data, model=network, loss=loss, collate=None, **options)


@pytest.mark.parametrize("is_random", [False, True], ids=["fixed", "random"])
def test_images_with_their_transforms_are_a_data_set(root: Path, is_random: bool) -> None:
    transforms = [Resize((4, 4)), ToTensor()]
    if is_random:
        transforms.insert(0, RandomHorizontalFlip())
    data = Images(root, Compose(transforms), target_transform=lambda target: 2 - target)
    seen = []
    for plan in PLANS:
        done = hotlap.train(of_images(data), Plan(plan))
        parameters = [parameter.tolist() for parameter in done.model.parameters()]
        seen.append((done.epochs[-1].loss, parameters))
        if "resident" in plan:
            (resident,) = done.techniques
            assert resident["state"] == ("no_effect" if is_random else "applied")
            assert not is_random or "draws from" in resident["why"]
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("plan", [{}, {"workers": {"count": 1}}], ids=str)
def test_what_cannot_be_a_batch_is_explained(root: Path, plan: Any) -> None:
    with pytest.raises(hotlap.UsageError, match=r"holds <class 'PIL.*Convert it in the dataset"):
        hotlap.train(of_images(Images(root)), Plan(plan))
    for kind in (None, "torch"):
        with pytest.raises(hotlap.UsageError, match="differ in length or shape"):
            hotlap.train(task(Table(ROWS, kind), collate=None), Plan(plan))


@pytest.mark.parametrize("plan", [{}, {"workers": {"count": 1}}], ids=str)
def test_other_errors_stay_what_they_are(plan: Any) -> None:
    class Broken(Table):
        def __getitem__(self, key: Any) -> Any:
            raise TypeError("found nothing")

    with pytest.raises(TypeError, match="found nothing") as raised:
        hotlap.train(task(Broken(ROWS)), Plan(plan))
    # Who follows the causes comes to an end.
    assert raised.value.__cause__ is not raised.value


def test_a_dict_of_data_sets_is_none() -> None:
    parts = {"train": Table(ROWS), "test": Table(ROWS)}
    with pytest.raises(hotlap.UsageError, match="data is a dict with the keys 'train', 'test'"):
        task(parts)
    with pytest.raises(hotlap.UsageError, match="held_out is a dict"):
        task(Table(ROWS), held_out=parts)
    datasets = pytest.importorskip("datasets", reason="needs `pip install datasets`")
    made = datasets.DatasetDict(train=datasets.Dataset.from_dict(ROWS))
    with pytest.raises(hotlap.UsageError, match="data is a DatasetDict with the keys 'train'"):
        task(made)


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "datasets"])
def test_lengths_may_come_from_a_column(real: bool) -> None:
    data = table(None, real)
    budgeted = task(data, batch_size=None, tokens_per_batch=40, lengths=list(map(len, data["ids"])))
    assert len({str(hotlap.train(budgeted, Plan(plan)).epochs[-1].loss) for plan in PLANS}) == 1
    other = replace(budgeted, lengths=lambda row: len(row["ids"]))
    assert other.budget.digest == budgeted.budget.digest
    assert build(other, Plan()).warmed[0].length <= 9


def test_a_default_device_of_the_task_is_not_that_of_the_order() -> None:
    def orders() -> list[Any]:
        return [
            epoch_order(9, seed=1, epoch=2, shuffle=True).tolist(),
            epoch_order(9, seed=1, epoch=2, shuffle=False).tolist(),
            list(through_buffer(iter(range(30)), 8, seed=1, epoch=2)),
        ]

    expected = orders()
    with torch.device("meta"):
        assert orders() == expected
