"""What of a batch is padding, and what only looks like it."""

from typing import Any

import numpy as np
import pytest

from hotlap.trace.padding import measure_padding, names_of

SAMPLES, LENGTH = 16, 40
LENGTHS = np.array([40, 7, 12, 33, 5, 28, 19, 3, 22, 9, 31, 14, 6, 17, 25, 11])
KEPT = np.arange(LENGTH) < LENGTHS[:, None]
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 1000, (SAMPLES, LENGTH))


def padding_of(**arrays: np.ndarray) -> dict[str, tuple[int, float, str]]:
    """Return name -> (positions that are no padding, value, mask) of what is padded."""
    rows = measure_padding(list(arrays.items()), 1, "a.py:1")
    return {row.name: (row.filled, row.value, row.mask) for row in rows if row.value is not None}


@pytest.mark.parametrize("value", [0, -100, 50256])
def test_ids_that_end_with_one_value_are_padded(value: int) -> None:
    ids = np.where(KEPT, IDS, value)
    assert padding_of(ids=ids) == {"ids": (LENGTHS.sum(), value, "")}
    # `pad_sequence` gives (length, samples) by default; tokenizers may pad on the left.
    assert padding_of(ids=ids.T) == {"ids": (LENGTHS.sum(), value, "")}
    assert padding_of(ids=ids[:, ::-1]) == {"ids": (LENGTHS.sum(), value, "")}


def test_the_longest_sample_is_measured() -> None:
    ids = np.where(KEPT & (np.arange(LENGTH) < 33), IDS, 0)
    (row,) = measure_padding([("ids", ids)], 3, "a.py:1")
    assert (row.step, row.samples, row.length, row.longest) == (3, SAMPLES, LENGTH, 33)


def test_features_that_are_filled_up_with_rows_of_zeros_are_padded() -> None:
    features = RNG.normal(size=(SAMPLES, LENGTH, 5)).astype(np.float32)
    features[~KEPT] = 0
    assert padding_of(x=features) == {"x": (LENGTHS.sum(), 0.0, "")}


@pytest.mark.parametrize("kind", [bool, np.int64, np.float32])
@pytest.mark.parametrize("means_padding", [True, False])
def test_a_mask_says_what_is_padding_where_its_value_is_common(
    kind: type, means_padding: bool
) -> None:
    ids = np.where(KEPT & (IDS % 3 > 0), IDS, 0)
    assert padding_of(ids=ids) == {}
    mask = np.not_equal(KEPT, means_padding).astype(kind)
    assert padding_of(ids=ids, mask=mask) == {"ids": (LENGTHS.sum(), 0, "mask")}


def test_a_mask_of_something_else_is_none() -> None:
    other = RNG.integers(0, 2, (SAMPLES, LENGTH))
    assert padding_of(ids=IDS, mask=other) == {}
    # At one end of the rows, and what it leaves out is no constant: types of segments, say.
    assert padding_of(ids=IDS, mask=KEPT) == {}
    # Whole rows left out, or nothing.
    assert padding_of(ids=IDS, mask=np.zeros((SAMPLES, LENGTH), int)) == {}
    assert padding_of(ids=IDS, mask=np.ones((SAMPLES, LENGTH), int)) == {}


def test_lengths_say_what_is_padding_where_its_value_is_common() -> None:
    ids = np.where(KEPT & (IDS % 3 > 0), IDS, 0)
    # Of classes few sequences end with the value that fills them up.
    ids[np.arange(SAMPLES), LENGTHS - 1] = 7
    for given in (ids, ids.T):
        assert padding_of(ids=given, lengths=LENGTHS) == {"ids": (LENGTHS.sum(), 0, "lengths")}
    assert padding_of(ids=IDS, lengths=LENGTHS) == {}
    # Most of them end with it: other numbers than lengths.
    ids[np.arange(SAMPLES), LENGTHS - 1] = 0
    assert padding_of(ids=ids, lengths=LENGTHS) == {}


def test_labels_of_0_and_1_are_no_lengths_of_weights_in_a_column() -> None:
    labels = RNG.integers(0, 2, SAMPLES)
    weights = np.where(labels[:, None], RNG.random((SAMPLES, 1)), 0.5)
    assert padding_of(weights=weights, labels=labels) == {}


def test_ids_without_padding_are_counted_as_full() -> None:
    (row,) = measure_padding([("ids", IDS)], 1, "a.py:1")
    assert (row.filled, row.value) == (SAMPLES * LENGTH, None)


def digits(shape: tuple[int, ...]) -> np.ndarray:
    """Return images with black borders of different widths, as those of MNIST."""
    images = np.zeros((SAMPLES, 28, 28))
    for number, image in enumerate(images):
        top, end = 3 + number % 4, 21 + number % 5
        image[top:end, 4 : 20 + number % 4] = RNG.integers(0, 2, (end - top, 16 + number % 4))
        image *= RNG.random((28, 28))
    return (images.reshape(shape) * 255).round()


NONE = {
    "digits, flat, of integers": digits((SAMPLES, 784)).astype(np.int64),
    "digits, as they are stored": digits((SAMPLES, 28, 28)).astype(np.uint8),
    "digits, flat": digits((SAMPLES, 784)).astype(np.float32),
    "digits, of rows": digits((SAMPLES, 28, 28)).astype(np.float32),
    "digits, with a channel": digits((SAMPLES, 1, 28, 28)).astype(np.float32),
    "digits, normalised": ((digits((SAMPLES, 28, 28)) - 33) / 78).astype(np.float32),
    "one-hot": np.eye(SAMPLES, dtype=np.int64),
    "one-hot, of floats, in time": np.eye(LENGTH)[RNG.integers(0, LENGTH, (SAMPLES, 9))],
    "many-hot": (RNG.random((SAMPLES, LENGTH)) < 0.1).astype(np.int64),
    "ordinal": KEPT.astype(np.int64),
    "zeros": np.zeros((SAMPLES, LENGTH), np.int64),
    "ones": np.ones((SAMPLES, LENGTH, 4), np.float32),
    "text": IDS % 30,
    "counts": RNG.poisson(0.3, (SAMPLES, LENGTH)),
    "classes": RNG.integers(0, 10, SAMPLES),
    "masked for BERT": np.where(RNG.random((SAMPLES, LENGTH)) < 0.85, -100, IDS),
    "nothing": np.zeros((0, 5), np.int64),
    "not numbers": np.full((SAMPLES, LENGTH, 4), np.nan, np.float32),
    "one sample": np.where(KEPT, IDS, 0)[1:2],
}


@pytest.mark.parametrize("name", NONE)
def test_what_only_looks_like_padding_is_none(name: str) -> None:
    assert padding_of(x=NONE[name]) == {}


def test_parts_of_a_batch_are_called_as_code_would() -> None:
    batch: Any = [{"ids": 1, 2: (3, 4)}, 5]
    assert list(names_of(batch)) == [
        ("batch[0]['ids']", 1),
        ("batch[0][2][0]", 3),
        ("batch[0][2][1]", 4),
        ("batch[1]", 5),
    ]
