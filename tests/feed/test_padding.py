"""`hotlap.pad`: samples of different lengths become one batch, and nothing else of them changes."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import hotlap
from hotlap.sequences.padding import Pad

Pair = namedtuple("Pair", "ids label")
DICTS = [
    {"ids": [1, 2, 3], "labels": [4, 5, 6], "label": 0, "name": "a"},
    {"ids": [7], "labels": [8], "label": 1, "name": "b"},
]


def test_each_field_has_its_own_padding_value() -> None:
    batch = hotlap.pad({"ids": 0, "labels": -100})(DICTS)
    assert list(batch) == ["ids", "labels", "label", "name"]
    assert batch["ids"].tolist() == [[1, 2, 3], [7, 0, 0]]
    assert batch["labels"].tolist() == [[4, 5, 6], [8, -100, -100]]
    assert batch["label"].tolist() == [0, 1] and batch["name"] == ["a", "b"]
    assert batch["ids"].dtype == torch.int64


def test_lengths_and_mask_are_given_where_they_are_asked_for() -> None:
    batch = hotlap.pad({"ids": 0, "labels": 0}, lengths="n", mask=True)(DICTS)
    assert batch["n"].tolist() == [3, 1]
    assert batch["mask"].tolist() == [[True] * 3, [True, False, False]]
    rows = [(torch.ones(2, dtype=torch.int32), 5), (torch.ones(1, dtype=torch.int32), 6)]
    ids, label, n, mask = hotlap.pad({0: 9}, lengths=True, mask=True)(rows)
    assert ids.tolist() == [[1, 1], [1, 9]] and ids.dtype == torch.int32
    assert label.tolist() == [5, 6] and n.tolist() == [2, 1]
    assert mask.tolist() == [[True, True], [True, False]]


def test_a_sample_may_be_one_tensor() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert hotlap.pad(-1)(rows).tolist() == [[1.0, 2.0], [3.0, -1.0]]
    tokens, n = hotlap.pad(0, lengths=True)(rows)
    assert tokens.shape == (2, 2) and n.tolist() == [2, 1]


@pytest.mark.parametrize(("longest", "width"), [(1, 4), (4, 4), (5, 9), (9, 9)])
def test_batches_have_the_width_of_a_bucket(longest: int, width: int) -> None:
    batch = hotlap.pad({0: 0}, to=(4, 9), mask=True)([([1] * longest, 1), ([1], 0)])
    assert batch[0].shape == batch[2].shape == (2, width)
    assert batch[0][:, longest:].sum() == 0


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dimension_can_be_padded(dim: int) -> None:
    shapes = [[2, 3, 4], [2, 3, 4]]
    shapes[1][dim] += 2
    rows = [torch.randn(shape) for shape in shapes]
    batch = hotlap.pad({"x": 7}, dim=dim, to=(9,))([{"x": row} for row in rows])["x"]
    assert batch.is_contiguous() and batch.shape[dim + 1] == 9
    for padded, row in zip(batch, rows, strict=True):
        assert torch.equal(padded.narrow(dim, 0, row.shape[dim]), row)
        rest = padded.narrow(dim, row.shape[dim], 9 - row.shape[dim])
        assert (rest == 7).all()


@pytest.mark.parametrize("to", [(), (4, 8)])
@pytest.mark.parametrize("values", [{"ids": 0, "labels": -100}, {"ids": 3}])
def test_what_is_cut_from_wider_rows_is_the_batch_itself(values: Any, to: Any) -> None:
    pad = hotlap.pad(values, to=to, lengths=True, mask=True)
    samples = [
        {"ids": row["ids"], "labels": torch.tensor(row["labels"][:1]), "label": row["label"]}
        for row in DICTS
    ]
    direct, cut = pad(samples), pad.cut(pad.pad_to(samples, 20))
    assert direct.keys() == cut.keys()
    for name, value in direct.items():
        assert torch.equal(cut[name], value) and cut[name].stride() == value.stride()
    bare = Pad(0, to=to)
    rows = [torch.arange(3), torch.arange(1)]
    assert torch.equal(bare.cut(bare.pad_to(rows, 20)), bare(rows))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["dict", "tuple", "tensor"])
def test_parts_of_different_widths_join_to_the_batch_of_all(kind: str, dim: int) -> None:
    fields = [torch.full((2, 2), float(n)) for n in (1, 2, 3)]
    lengths = (2, 5, 3)
    rows = [
        row.new_full([*row.shape[:dim], length, *row.shape[dim + 1 :]], 4.0)
        for row, length in zip(fields, lengths, strict=True)
    ]
    if kind == "tensor":
        pad, samples = hotlap.pad(7, dim=dim, lengths=True, mask=True), rows
    elif kind == "tuple":
        pad, samples = hotlap.pad({0: 7}, dim=dim, mask=True), [(row, 1) for row in rows]
    else:
        pad = hotlap.pad({"x": 7}, dim=dim, lengths=True, mask=True)
        samples = [{"x": row, "label": 1} for row in rows]
    whole = pad(samples)
    joined = pad.join([pad(samples[:1]), pad(samples[1:])])
    names = whole if isinstance(whole, dict) else range(len(whole))
    assert len(joined) == len(whole)
    assert all(torch.equal(joined[name], whole[name]) for name in names)
    other = pad.join([pad(samples[1:]), pad(samples[:1])])
    assert not all(torch.equal(other[name], whole[name]) for name in names)


def test_parts_of_one_tensor_join_to_the_batch_of_all() -> None:
    rows = [torch.arange(2), torch.arange(4)]
    pad = Pad(-1)
    assert torch.equal(pad.join([pad(rows[:1]), pad(rows[1:])]), pad(rows))


def test_numpy_arrays_lists_and_empty_samples() -> None:
    rows = [{"x": np.array([1, 2])}, {"x": []}, {"x": torch.tensor([3])}]
    batch = hotlap.pad({"x": 0}, lengths=True)(rows)
    assert batch["x"].tolist() == [[1, 2], [0, 0], [3, 0]]
    assert batch["x"].dtype == torch.int64 and batch["lengths"].tolist() == [2, 0, 1]


def test_named_tuples_have_positions() -> None:
    ids, label = hotlap.pad({0: 0})([Pair([1, 2], 1), Pair([3], 0)])
    assert ids.tolist() == [[1, 2], [3, 0]] and label.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({},), "no field to pad"),
        (({"ids": "0"},), "the padding value of field 'ids' is '0'"),
        ((True,), "padding value of field 0 is True"),
        (({"ids": 0}, (8, 4)), r"to=\[8, 4\]"),
        (({"ids": 0}, (0, 4)), r"to=\[0, 4\]"),
        (({"ids": 0}, (4, 4)), r"to=\[4, 4\]"),
        (({"ids": 0}, (), -1), "dim=-1"),
    ],
)
def test_padding_that_cannot_be_is_refused(arguments: Any, words: str) -> None:
    values, to, dim = (*arguments, *((), 0)[len(arguments) - 1 :])
    with pytest.raises(hotlap.UsageError, match=words):
        hotlap.pad(values, to=to, dim=dim)


@pytest.mark.parametrize(
    ("pad", "samples", "words"),
    [
        (hotlap.pad({"tokens": 0}), DICTS, "field 'tokens', which samples do not have. Expected"),
        (hotlap.pad({"label": 0}), [{"label": 1}], "cannot pad field 'label'"),
        (hotlap.pad({"ids": 0}), DICTS, "'labels' cannot be stacked: each element"),
        (
            hotlap.pad({"ids": 0}, to=(2,)),
            DICTS,
            "has length 3, but `to` of hotlap.pad says at most 2",
        ),
        (hotlap.pad({"ids": 0, "labels": 0}, lengths="name"), DICTS, "add a field 'name'"),
        (
            hotlap.pad({"x": 0}),
            [torch.ones(3)],
            "was given fields, but a sample is a single Tensor",
        ),
        (hotlap.pad({0: 0}), [([1],), ([0.5],)], "torch.float32 in one sample and torch.int64"),
        (
            hotlap.pad({0: 0}),
            [(torch.ones(2, 3),), (torch.ones(1, 4),)],
            "which differ in another dimension than dim=0",
        ),
    ],
)
def test_samples_that_cannot_be_padded_are_explained(pad: Any, samples: Any, words: str) -> None:
    with pytest.raises(hotlap.UsageError, match=words):
        pad(samples)
