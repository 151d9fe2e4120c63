"""`PartReader`: reads boxes of the tensors of a step, and takes memory for no more than these."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from hotlap.checkpoint.layout import SHARD
from hotlap.checkpoint.read import read_manifest, read_proven
from hotlap.checkpoint.shards import Box, Piece, check_box, join
from hotlap.checkpoint.write import STATE
from hotlap.errors import CheckpointCorrupt


@dataclass(frozen=True)
class _Stored:
    """A tensor, and the box of it that each file holds."""

    shape: tuple[int, ...]
    boxes: Mapping[str, Box]


class PartReader:
    """A committed step of which parts are read.

    Args:
        path: the step's folder. All of its files are read once, in chunks, to prove them; nothing
            writes to a committed step.

    Raises:
        MissingFile: there is no such folder.
        CheckpointCorrupt: a file is missing or is not what the manifest says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = read_manifest(path)
        for name, about in manifest["files"].items():
            deque(read_proven(path, name, about), maxlen=0)
        self.step: int = manifest["step"]
        self._tensors: dict[str, dict[str, _Stored]] = {
            group: {name: _stored(about) for name, about in names.items()}
            for group, names in manifest.get("tensors", {}).items()
        }
        try:
            self.state: Mapping[str, Any] = json.loads((path / STATE).read_bytes())
            for file in manifest["files"]:
                if file.endswith(".safetensors") and not SHARD.fullmatch(file):
                    self._tensors[file.removesuffix(".safetensors")] = self._whole(file)
        except Exception as error:
            raise self._corrupt(error) from error

    @property
    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Group -> name of a tensor -> its whole shape."""
        return {
            group: {name: each.shape for name, each in names.items()}
            for group, names in self._tensors.items()
        }

    def read(self, group: str, name: str, shape: Sequence[int], begin: Sequence[int]) -> Piece:
        """Return the part of a tensor that has a shape and begins at an index.

        Raises:
            KeyError: there is no such tensor.
            ValueError: the box does not lie within it.
            CheckpointCorrupt: a file does not hold what the manifest says.
        """
        stored = self._tensors[group][name]
        check_box(stored.shape, (begin, shape))
        try:
            found = []
            for file, box in stored.boxes.items():
                common = _common((begin, shape), box)
                # A part without elements has a dtype all the same.
                if common is not None or (0 in shape and not found):
                    local = self._slice(file, name, box, common)
                    first = begin if common is None else common[0]
                    moved = [a - b for a, b in zip(first, begin, strict=True)]
                    found.append(Piece(local, tuple(shape), tuple(moved)))
            return Piece(join(found), stored.shape, tuple(begin))
        except Exception as error:
            raise self._corrupt(error) from error

    def _whole(self, file: str) -> dict[str, _Stored]:
        """Return the tensors of a file that holds whole ones."""
        with safe_open(self.path / file, "pt") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        return {
            name: _Stored(shape, {file: ([0] * len(shape), shape)})
            for name, shape in shapes.items()
        }

    def _slice(self, file: str, name: str, box: Box, common: Box | None) -> torch.Tensor:
        """Return the elements of a box from a file that holds a larger one."""
        begin, size = box
        with safe_open(self.path / file, "pt") as opened:
            held = opened.get_slice(name)
            if [*held.get_shape()] != [*size]:
                raise ValueError(f"'{file}' holds '{name}' of shape {held.get_shape()}")
            if not size:
                return opened.get_tensor(name)
            if common is None:
                return held[0:0].new_empty([0] * len(size))
            ranges = zip(begin, *common, strict=True)
            return held[tuple(slice(a - first, a - first + n) for first, a, n in ranges)]

    def _corrupt(self, error: Exception) -> CheckpointCorrupt:
        message = (
            f"'{self.path}' cannot be loaded: {error}. Pass the run's folder instead of this "
            "checkpoint, to use its newest intact one."
        )
        return CheckpointCorrupt(message)


def _stored(about: Mapping[str, Any]) -> _Stored:
    boxes = {each["file"]: (each["begin"], each["shape"]) for each in about["pieces"]}
    return _Stored(tuple(about["shape"]), boxes)


def _common(one: Box, other: Box) -> Box | None:
    """Return the box of what two boxes share, None if they share no element."""
    ranges = [*zip(*one, *other, strict=True)]
    begin = [max(a, b) for a, _, b, _ in ranges]
    end = [min(a + size, b + other_size) for a, size, b, other_size in ranges]
    if any(last <= first for first, last in zip(begin, end, strict=True)):
        return None
    return begin, [last - first for first, last in zip(begin, end, strict=True)]
