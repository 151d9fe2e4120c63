"""A part of a tensor is read from the files that hold it, and they are proven before."""

import random
from pathlib import Path

import pytest
import torch

from hotlap.checkpoint.read import read
from hotlap.checkpoint.read_parts import PartReader
from hotlap.checkpoint.shards import cut
from hotlap.checkpoint.write import commit
from hotlap.errors import CheckpointCorrupt, MissingFile
from tests.checkpoint.sharded import STATE, saved, state_of
from tests.checkpoint.test_steps import bits
from tests.checkpoint.whole import is_whole


@pytest.fixture(scope="module", params=[0, 1, 2, 3])
def step(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a step that so many ranks wrote, or one process that held whole tensors."""
    root = tmp_path_factory.mktemp("parts")
    if request.param:
        return saved(root, 1, request.param)
    return commit(root, 1, state_of(1), STATE, is_whole=is_whole, keep=1)


def test_any_box_of_any_tensor_is_read_to_the_bit(step: Path) -> None:
    reader, draws = PartReader(step), random.Random(5)
    assert (reader.step, reader.state) == (1, STATE)
    wanted = state_of(1)
    assert reader.shapes == {
        group: {name: tuple(tensor.shape) for name, tensor in names.items()}
        for group, names in wanted.items()
    }
    for group, names in wanted.items():
        for name, whole in names.items():
            for _ in range(6):
                begin = [draws.randint(0, size) for size in whole.shape]
                ends = [draws.randint(a, n) for a, n in zip(begin, whole.shape, strict=True)]
                shape = [b - a for a, b in zip(begin, ends, strict=True)]
                found, same = reader.read(group, name, shape, begin), cut(whole, shape, begin)
                assert (found.box, found.shape) == (same.box, same.shape)
                assert found.local.dtype == same.local.dtype
                assert bits(found.local) == bits(same.local)


def test_what_is_not_within_a_tensor_is_refused(step: Path) -> None:
    reader = PartReader(step)
    with pytest.raises(ValueError, match="is not within the shape"):
        reader.read("model", "0.weight", [6, 3], [0, 0])
    with pytest.raises(KeyError):
        reader.read("model", "another", [1], [0])


def test_files_are_proven_before_any_part_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path)
    file = path / "optimizer-00002-of-00002.safetensors"
    content = file.read_bytes()
    for changed in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1], b""):
        file.write_bytes(changed)
        with pytest.raises(CheckpointCorrupt, match=file.name):
            PartReader(path)
    file.write_bytes(content)
    assert PartReader(path).step == read(path).step
    with pytest.raises(MissingFile):
        PartReader(tmp_path / "step-000000000009")


def test_a_file_that_changes_later_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path)
    reader = PartReader(path)
    (path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointCorrupt, match="cannot be loaded"):
        reader.read("model", "0.weight", [5, 3], [0, 0])
    assert torch.is_tensor(reader.read("model", "0.weight", [1, 3], [4, 0]).local)
