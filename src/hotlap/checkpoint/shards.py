"""`Piece`: a rank's part of a tensor, and how parts are cut and joined.

A part is a box in the index space of the whole tensor: where it begins, and its shape.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Box = tuple[Sequence[int], Sequence[int]]
"""Where a part of a tensor begins, and its shape."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A rank's part of a tensor.

    Raises:
        ValueError: the box does not lie within the tensor.
    """

    local: torch.Tensor
    """The elements of the box."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    begin: tuple[int, ...]
    """Index of the box's first element in the whole tensor."""

    def __post_init__(self) -> None:
        check_box(self.shape, self.box)

    @property
    def box(self) -> Box:
        """Where it begins, and its shape."""
        return self.begin, tuple(self.local.shape)


def join(pieces: Sequence[Piece]) -> torch.Tensor:
    """Return the tensor that parts were cut from.

    Raises:
        ValueError: they are of different tensors, or do not cover one, each element once.
    """
    kinds = {(piece.local.dtype, tuple(piece.shape)) for piece in pieces}
    if len(kinds) != 1:
        raise ValueError(f"the parts are of {len(kinds)} tensors: {sorted(map(str, kinds))}")
    ((dtype, shape),) = kinds
    check_cover(shape, [piece.box for piece in pieces])
    whole = torch.empty(shape, dtype=dtype, device=pieces[0].local.device)
    for piece in pieces:
        sizes = zip(piece.begin, piece.local.shape, strict=True)
        whole[tuple(slice(first, first + size) for first, size in sizes)] = piece.local
    return whole


def check_cover(shape: Sequence[int], boxes: Iterable[Box]) -> None:
    """Raise unless boxes cover a tensor, each element once. Nothing is allocated for it.

    Raises:
        ValueError: the message says which box is wrong, or how many elements are missing.
    """
    found = []
    for box in boxes:
        check_box(shape, box)
        if math.prod(box[1]):
            found.append(box)
    for one, other in _neighbors(found):
        if _overlap(one, other):
            raise ValueError(f"the boxes {_words(one)} and {_words(other)} overlap")
    held, wanted = sum(math.prod(size) for _, size in found), math.prod(shape)
    if held != wanted:
        raise ValueError(f"the boxes hold {held} of {wanted} elements of the shape {[*shape]}")


def _neighbors(boxes: Sequence[Box]) -> Iterable[tuple[Box, Box]]:
    """Give the pairs of boxes that share an index of the dimension that most of them differ in."""
    if not boxes or not boxes[0][0]:
        # Without dimensions, every box is the one element.
        yield from itertools.pairwise(boxes)
        return
    dimensions = range(len(boxes[0][0]))
    along = max(dimensions, key=lambda dimension: len({box[0][dimension] for box in boxes}))
    open_ones: list[Box] = []
    for box in sorted(boxes, key=lambda each: each[0][along]):
        first = box[0][along]
        open_ones = [each for each in open_ones if each[0][along] + each[1][along] > first]
        yield from ((each, box) for each in open_ones)
        open_ones.append(box)


def _overlap(one: Box, other: Box) -> bool:
    ranges = zip(*one, *other, strict=True)
    return all(a < b + other_size and b < a + size for a, size, b, other_size in ranges)


def check_box(shape: Sequence[int], box: Box) -> None:
    """Raise unless a box lies within a tensor.

    Raises:
        ValueError: the message says which one is not.
    """
    begin, size = box
    if not len(shape) == len(begin) == len(size):
        raise ValueError(f"the box {_words(box)} has not the dimensions of the shape {[*shape]}")
    for total, first, count in zip(shape, begin, size, strict=True):
        if first < 0 or count < 0 or first + count > total:
            raise ValueError(f"the box {_words(box)} is not within the shape {[*shape]}")


def _words(box: Box) -> str:
    begin, size = box
    return f"{[*size]} at {[*begin]}"


def holds_pieces(tensors: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if any tensor of any group is a part."""
    return any(isinstance(each, Piece) for group in tensors.values() for each in group.values())


def local_of(tensor: "torch.Tensor | Piece") -> torch.Tensor:
    """Return the elements of a tensor, or of a part, that this rank holds."""
    return tensor.local if isinstance(tensor, Piece) else tensor
