"""Which file holds which part of which tensor, where ranks hold parts.

A group of tensors of which any rank holds parts is written as one file per rank, and the manifest
has a layout of it:

    {"model": {"0.weight": {"dtype": "torch.float32", "shape": [4, 3], "pieces": [
        {"file": "model-00001-of-00002.safetensors", "begin": [0, 0], "shape": [2, 3]}, ...]}}}
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hotlap.checkpoint.shards import Box, Piece, check_cover, join, local_of

Layout = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Group -> name of a tensor -> its dtype, its whole shape, and the files that hold its boxes."""
Tensors = Mapping[str, Mapping[str, torch.Tensor | Piece]]
"""Group -> name of a tensor -> what one rank holds of it."""

SHARD = re.compile(r"(?P<group>[a-z_]{1,32})-(\d{5})-of-(?P<world>\d{5})\.safetensors", re.ASCII)
"""Name of the file of one rank."""
_GROUP = re.compile(r"[a-z_]{1,32}", re.ASCII)
_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_EIGHT_BIT = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
_NAMES = (*_FLOATS, *_EIGHT_BIT, *_INTEGERS, "complex64")
_DTYPES: dict[str, torch.dtype] = {
    str(dtype): dtype for name in _NAMES if (dtype := getattr(torch, name, None)) is not None
}
"""By torch's own name: what safetensors can hold."""
_MOST_DIMENSIONS = 64
_LARGEST = 1 << 62


def can_hold(tensor: torch.Tensor) -> bool:
    """True if the file of a checkpoint can hold such a tensor."""
    return tensor.layout == torch.strided and str(tensor.dtype) in _DTYPES


def shard_name(group: str, rank: int, world: int) -> str:
    """Return the name of a rank's file of a group."""
    return f"{group}-{rank + 1:05d}-of-{world:05d}.safetensors"


def own_tensors(tensors: Tensors, rank: int) -> dict[str, dict[str, torch.Tensor | Piece]]:
    """Return what a rank writes: its parts, and the first rank also what is whole on all ranks."""
    return {
        group: {name: t for name, t in names.items() if rank == 0 or isinstance(t, Piece)}
        for group, names in tensors.items()
    }


def describe(tensors: Tensors) -> dict[str, dict[str, list[Any]]]:
    """Return what a rank writes as plain data, for `layout_of`: whether it is a part, dtype, whole
    shape, begin and own shape of each tensor."""
    found: dict[str, dict[str, list[Any]]] = {}
    for group, names in tensors.items():
        rows = found.setdefault(group, {})
        for name, each in names.items():
            local = local_of(each)
            is_part = isinstance(each, Piece)
            shape = each.shape if isinstance(each, Piece) else local.shape
            begin = each.begin if isinstance(each, Piece) else (0,) * local.dim()
            rows[name] = [is_part, str(local.dtype), [*shape], [*begin], [*local.shape]]
    return found


def layout_of(
    described: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the layout of the groups that ranks hold parts of.

    Args:
        described: what `describe` gave on each rank, by rank.

    Raises:
        ValueError: ranks disagree on a tensor, or their parts do not cover it, each element once.
    """
    parts = {
        group
        for rank in described
        for group, names in rank.items()
        if any(row[0] for row in names.values())
    }
    layout: dict[str, dict[str, dict[str, Any]]] = {group: {} for group in sorted(parts)}
    for number, rank in enumerate(described):
        for group in layout.keys() & rank.keys():
            file = shard_name(group, number, len(described))
            for name, (_, dtype, shape, begin, size) in rank[group].items():
                new = {"dtype": dtype, "shape": shape, "pieces": []}
                tensor = layout[group].setdefault(name, new)
                if (tensor["dtype"], tensor["shape"]) != (dtype, shape):
                    raise ValueError(
                        f"'{name}' is {dtype} {shape} on rank {number}, and {tensor['dtype']} "
                        f"{tensor['shape']} on a rank before it"
                    )
                tensor["pieces"].append({"file": file, "begin": begin, "shape": size})
    for names in layout.values():
        for name, tensor in names.items():
            if tensor["dtype"] not in _DTYPES:
                raise ValueError(f"'{name}' is {tensor['dtype']}, which a checkpoint cannot store")
            boxes = [(piece["begin"], piece["shape"]) for piece in tensor["pieces"]]
            _check_named(name, tensor["shape"], boxes)
    return layout


def _check_named(name: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    try:
        check_cover(shape, boxes)
    except ValueError as error:
        raise ValueError(f"of '{name}' {error}") from error


def check_layout(layout: Any, sizes: Mapping[str, int]) -> None:
    """Raise unless a layout is one that `layout_of` gives, and files of these sizes can hold it.

    Args:
        layout: of a manifest, which anybody may have written.
        sizes: name of each file that the manifest lists -> its bytes.

    Raises:
        ValueError: the message says what is wrong.
    """
    if not isinstance(layout, dict):
        raise ValueError(f"its tensors are {type(layout).__name__}. Expected: dict")
    for name in sizes:
        match = SHARD.fullmatch(name)
        if match is not None and match["group"] not in layout:
            raise ValueError(f"'{name}' is the file of a rank, and its tensors have no such group")
    needed = dict.fromkeys(sizes, 0)
    for group, names in layout.items():
        files = _files_of(group, sizes)
        if not isinstance(names, dict):
            raise ValueError(f"the tensors of '{group}' are not a dict")
        for name, tensor in names.items():
            for file, size in _check_tensor(name, tensor, files):
                needed[file] += size
    for file, size in needed.items():
        if size > sizes[file]:
            raise ValueError(
                f"the tensors of '{file}' need {size} bytes, and the file has {sizes[file]}"
            )


def _files_of(group: str, sizes: Mapping[str, int]) -> set[str]:
    """Return the files of all ranks of a group."""
    if not _GROUP.fullmatch(group) or f"{group}.safetensors" in sizes:
        raise ValueError(f"'{group}' is not a group of which ranks hold parts")
    listed = {name: match for name in sizes if (match := SHARD.fullmatch(name)) is not None}
    worlds = [int(match["world"]) for match in listed.values() if match["group"] == group]
    own = {name for name, match in listed.items() if match["group"] == group}
    if not own:
        raise ValueError(f"it lists no file of the group '{group}'")
    if len(own) < max(worlds):
        numbers = range(max(worlds))
        missing = next(n for n in numbers if shard_name(group, n, max(worlds)) not in own)
        raise ValueError(f"it does not list '{shard_name(group, missing, max(worlds))}'")
    if own != {shard_name(group, number, len(own)) for number in range(len(own))}:
        raise ValueError(f"the files of the group '{group}' are not those of {len(own)} ranks")
    return own


def _check_tensor(name: str, tensor: Any, files: set[str]) -> list[tuple[str, int]]:
    """Return the bytes that each file needs for a tensor of a layout."""
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "pieces"}:
        raise ValueError(f"'{name}' is not described by dtype, shape and pieces")
    if tensor["dtype"] not in _DTYPES or not isinstance(tensor["pieces"], list):
        raise ValueError(f"'{name}' is of dtype {tensor['dtype']!r}, which is not known")
    boxes: dict[str, Box] = {}
    for piece in tensor["pieces"]:
        if not isinstance(piece, dict) or piece.keys() != {"file", "begin", "shape"}:
            raise ValueError(f"a piece of '{name}' is not described by file, begin and shape")
        if piece["file"] not in files or piece["file"] in boxes:
            raise ValueError(f"a piece of '{name}' is in {piece['file']!r}, as no rank writes it")
        boxes[piece["file"]] = (_sizes(name, piece["begin"]), _sizes(name, piece["shape"]))
    _check_named(name, _sizes(name, tensor["shape"]), [*boxes.values()])
    width = _DTYPES[tensor["dtype"]].itemsize
    return [(file, math.prod(size) * width) for file, (_, size) in boxes.items()]


def _sizes(name: str, given: Any) -> list[int]:
    if not isinstance(given, list) or len(given) > _MOST_DIMENSIONS:
        raise ValueError(f"'{name}' has {str(given)[:80]}. Expected: a list of sizes")
    for each in given:
        if type(each) is not int or not 0 <= each < _LARGEST:
            raise ValueError(f"'{name}' has the size {str(each)[:80]}. Expected: 0 or more")
    return given


def assemble(
    group: Mapping[str, Mapping[str, Any]], files: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the whole tensors of one group of a layout that was checked.

    Args:
        group: name of a tensor -> what the layout says of it.
        files: name of each file of the group -> the tensors in it, by name.

    Raises:
        ValueError: a file does not hold the parts that the layout says.
    """
    wanted: dict[str, dict[str, Any]] = {file: {} for file in files}
    for name, tensor in group.items():
        for piece in tensor["pieces"]:
            wanted[piece["file"]][name] = (tensor["dtype"], piece["shape"])
    for file, held in files.items():
        _check_held(file, wanted[file], held)
    return {
        name: join(
            [
                Piece(files[piece["file"]][name], tuple(tensor["shape"]), tuple(piece["begin"]))
                for piece in tensor["pieces"]
            ]
        )
        for name, tensor in group.items()
    }


def _check_held(file: str, wanted: Mapping[str, Any], held: Mapping[str, torch.Tensor]) -> None:
    found = {name: (str(each.dtype), [*each.shape]) for name, each in held.items()}
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"'{file}' holds {found.get(name, 'nothing')} of '{name}'. Expected: "
                f"{wanted.get(name, 'nothing')}"
            )
