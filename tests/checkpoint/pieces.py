"""Cuts tensors into the parts that ranks hold."""

from collections.abc import Sequence

import torch

from hotlap.checkpoint.shards import Piece


def cut(whole: torch.Tensor, shape: Sequence[int], begin: Sequence[int]) -> Piece:
    """Return the part of a tensor that has a shape and begins at an index, in its own memory."""
    index = tuple(slice(first, first + size) for first, size in zip(begin, shape, strict=True))
    local = whole[index].clone(memory_format=torch.contiguous_format)
    return Piece(local, tuple(whole.shape), tuple(begin))
