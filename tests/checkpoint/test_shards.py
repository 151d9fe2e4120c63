"""Parts that are cut from a tensor give it back, to the bit, or the message says what is wrong."""

import random
import re
from typing import Any

import pytest
import torch

from hotlap.checkpoint.layout import describe, layout_of, own_tensors, shard_name
from hotlap.checkpoint.shards import Box, Piece, check_box, check_cover, join
from tests.checkpoint.pieces import cut
from tests.checkpoint.test_steps import bits

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.uint32, torch.uint8, torch.bool),
)


def random_boxes(shape: tuple[int, ...], draws: random.Random, most: int) -> list[Box]:
    """Cut a shape into boxes, each time one of them in two."""
    boxes: list[Any] = [((0,) * len(shape), shape)]
    for _ in range(draws.randrange(most)):
        begin, size = boxes.pop(draws.randrange(len(boxes)))
        if not size:
            return [(begin, size)]
        along = draws.randrange(len(size))
        # A part may be empty, as the last rank's is of a short dimension.
        at = draws.randint(0, size[along])
        first, second = list(size), list(size)
        first[along], second[along] = at, size[along] - at
        moved = list(begin)
        moved[along] += at
        boxes += [(begin, tuple(first)), (tuple(moved), tuple(second))]
    draws.shuffle(boxes)
    return boxes


def random_tensor(draws: random.Random) -> torch.Tensor:
    shape = tuple(draws.randint(1, 6) for _ in range(draws.randint(0, 4)))
    if draws.random() < 0.1 and shape:
        shape = (*shape[:-1], 0)
    generator = torch.Generator().manual_seed(draws.randrange(2**31))
    values = torch.randint(256, shape, generator=generator, dtype=torch.int64)
    return values.to(draws.choice(DTYPES))


@pytest.mark.parametrize("seed", range(150))
def test_parts_give_back_what_they_were_cut_from(seed: int) -> None:
    draws = random.Random(seed)
    whole = random_tensor(draws)
    boxes = random_boxes(tuple(whole.shape), draws, 9)
    pieces = [cut(whole, size, begin) for begin, size in boxes]
    again = join(pieces)
    assert (again.dtype, again.shape) == (whole.dtype, whole.shape) and bits(again) == bits(whole)


@pytest.mark.parametrize("seed", range(150))
def test_a_gap_and_an_overlap_are_seen(seed: int) -> None:
    draws = random.Random(seed)
    shape = tuple(draws.randint(2, 6) for _ in range(draws.randint(1, 4)))
    boxes = [each for each in random_boxes(shape, draws, 9) if 0 not in each[1]]
    check_cover(shape, boxes)
    lost = draws.randrange(len(boxes))
    with pytest.raises(ValueError, match=r"hold \d+ of \d+ elements"):
        check_cover(shape, boxes[:lost] + boxes[lost + 1 :])
    with pytest.raises(ValueError, match="overlap"):
        check_cover(shape, [*boxes, boxes[lost]])
    # As many elements as there should be, one of them twice and one of them never.
    begin, size = boxes[lost]
    along = draws.randrange(len(shape))
    moved = [*begin]
    moved[along] += 1 if begin[along] + size[along] < shape[along] else -1
    if moved[along] >= 0:
        with pytest.raises(ValueError, match="overlap"):
            check_cover(shape, [*boxes[:lost], (moved, size), *boxes[lost + 1 :]])


@pytest.mark.parametrize(
    ("shape", "begin", "words"),
    [
        ((2, 2), (3, 0), "is not within the shape"),
        ((2, 2), (-1, 0), "is not within the shape"),
        ((2, -2), (0, 0), "is not within the shape"),
        ((2,), (0,), "has not the dimensions"),
        ((2, 2), (0,), "has not the dimensions"),
    ],
)
def test_a_box_outside_is_refused(shape: Any, begin: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_box((4, 3), (begin, shape))


def test_parts_of_different_tensors_are_not_joined() -> None:
    half = Piece(torch.zeros(2), (4,), (0,))
    others = [
        Piece(torch.zeros(2, dtype=torch.float64), (4,), (2,)),
        Piece(torch.zeros(2), (5,), (2,)),
    ]
    for other in others:
        with pytest.raises(ValueError, match="the parts are of 2 tensors"):
            join([half, other])
    with pytest.raises(ValueError, match="the parts are of 0 tensors"):
        join([])


def test_a_huge_shape_is_refused_without_memory_for_it() -> None:
    with pytest.raises(ValueError, match="hold 2 of"):
        join([Piece(torch.zeros(2), (2**40,), (0,))])


def test_many_boxes_are_checked_without_comparing_each_with_each() -> None:
    rows = 3000
    boxes = [((row, 0), (1, 2)) for row in range(rows)]
    random.Random(0).shuffle(boxes)
    compared = 0

    class Counted(tuple):
        def __getitem__(self, key: Any) -> Any:
            nonlocal compared
            compared += 1
            return super().__getitem__(key)

    check_cover((rows, 2), [(Counted(begin), size) for begin, size in boxes])
    assert compared < 20 * rows


def layout(*ranks: Any) -> Any:
    return layout_of([describe(own_tensors(r, number)) for number, r in enumerate(ranks)])


def test_a_layout_says_which_file_holds_which_box() -> None:
    whole = torch.arange(6.0).view(3, 2)
    first = {"model": {"w": cut(whole, (2, 2), (0, 0)), "norm": torch.ones(2)}, "random": {}}
    second = {"model": {"w": cut(whole, (1, 2), (2, 0)), "norm": torch.ones(2)}, "random": {}}
    files = [shard_name("model", rank, 2) for rank in range(2)]
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    # What no rank holds in parts is written by the first one.
    assert layout(first, second) == {
        "model": {
            "w": {
                "dtype": "torch.float32",
                "shape": [3, 2],
                "pieces": [
                    {"file": files[0], "begin": [0, 0], "shape": [2, 2]},
                    {"file": files[1], "begin": [2, 0], "shape": [1, 2]},
                ],
            },
            "norm": {
                "dtype": "torch.float32",
                "shape": [2],
                "pieces": [{"file": files[0], "begin": [0], "shape": [2]}],
            },
        }
    }


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Piece(torch.zeros(1), (4,), (2,)), "of 'w' the boxes hold 3 of 4 elements"),
        (Piece(torch.zeros(3), (4,), (1,)), "of 'w' the boxes [2] at [0] and [3] at [1] overlap"),
        (Piece(torch.zeros(3), (5,), (2,)), "'w' is torch.float32 [5] on rank 1, and"),
        (Piece(torch.zeros(2).int(), (4,), (2,)), "'w' is torch.int32 [4] on rank 1, and"),
    ],
)
def test_ranks_whose_parts_do_not_fit_are_told(other: Piece, words: str) -> None:
    first = {"model": {"w": Piece(torch.zeros(2), (4,), (0,))}}
    with pytest.raises(ValueError, match=re.escape(words)):
        layout(first, {"model": {"w": other}})


def test_a_dtype_that_no_file_can_hold_is_told() -> None:
    each = Piece(torch.zeros(1, dtype=torch.complex128), (1,), (0,))
    with pytest.raises(ValueError, match=r"'w' is torch\.complex128, which a checkpoint cannot"):
        layout({"model": {"w": each}})


def test_what_is_whole_on_one_rank_and_a_part_on_another_is_told() -> None:
    with pytest.raises(ValueError, match=r"of 'w' the boxes .* overlap"):
        layout(
            {"model": {"w": torch.zeros(4)}},
            {"model": {"w": Piece(torch.zeros(2), (4,), (2,))}},
        )
