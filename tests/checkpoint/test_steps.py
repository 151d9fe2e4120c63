"""A committed step is read back to the bit, or refused by name; what is in it is never run."""

import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.checkpoint import write
from hotlap.checkpoint.read import Checkpoint, find_newest, read
from hotlap.checkpoint.write import MANIFEST, checksum, commit
from hotlap.errors import CheckpointCorrupt, MissingFile
from tests.checkpoint.whole import is_whole

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)

STATE = {"position": {"epoch": 2}, "rate": 0.1, "names": ["ü", None]}


def saved(root: Path, step: int = 1, value: float = 0.0, **options: Any) -> Path:
    tensors = {"model": {"weight": torch.full((3,), value)}}
    given = {"is_whole": is_whole, "keep": 9, **options}
    return commit(root, step, tensors, STATE, **given)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_of_a_tensor_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(256, (6, 2, 16), generator=generator, dtype=torch.uint8)
    # Numbers of every kind, those that are none included; of truth there are two.
    values = raw.bool() if dtype is torch.bool else raw.view(dtype)
    group = {"all": values, "none": values[:0], "one": values[0, 0, 0]}
    path = commit(tmp_path, 1, {"model": group}, {}, is_whole=is_whole, keep=1)
    found = read(path).tensors["model"]
    assert found.keys() == group.keys()
    for name, tensor in group.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(found[name]) == bits(tensor), name


def test_shared_strided_and_trained_tensors_are_kept_each_by_its_values(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    weight = torch.nn.Parameter(whole.clone())
    group = {"one": whole, "same": whole, "turned": whole.t(), "part": whole[:, 1], "w": weight}
    path = commit(tmp_path, 1, {"model": group}, {}, is_whole=is_whole, keep=1)
    found = read(path).tensors["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in group.items())
    assert not any(tensor.requires_grad for tensor in found.values())


def test_a_step_says_its_number_its_state_and_its_files(tmp_path: Path) -> None:
    tensors = {"model": {"w": torch.ones(1)}, "buffers": {}, "random": {"torch": torch.zeros(2)}}
    path = commit(tmp_path / "ckpt", 420, tensors, STATE, is_whole=is_whole, keep=1)
    found = read(path)
    assert path.name == "step-000000000420"
    assert (found.path, found.step, found.state) == (path, 420, STATE)
    assert found.tensors.keys() == {"model", "random"}
    assert {each.name for each in path.iterdir()} == {
        *("model.safetensors", "random.safetensors", "state.json", "MANIFEST.json")
    }
    assert (path.parent / "LATEST").read_text() == path.name


def damages(path: Path) -> Iterator[str]:
    """Change a byte in many places, cut the file there, and take it away."""
    content = path.read_bytes()
    for at in {*range(0, len(content), 1 + len(content) // 60), len(content) - 1}:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        yield f"byte {at} is another"
        path.write_bytes(content[:at])
        yield f"cut at {at}"
    path.write_bytes(content + b" ")
    yield "one byte more"
    path.unlink()
    yield "gone"
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "MANIFEST.json"])
def test_wherever_a_file_is_altered_or_cut_it_is_seen_and_the_file_is_named(
    name: str, tmp_path: Path
) -> None:
    path = saved(tmp_path)
    for damage in damages(path / name):
        # JSON may be followed by a space: nothing of what the manifest says is another then.
        if name == MANIFEST and damage == "one byte more":
            continue
        assert not is_whole(path), damage
        with pytest.raises(CheckpointCorrupt) as refused:
            read(path)
        assert str(path / name) in str(refused.value), damage
    assert is_whole(path)


def forged(path: Path, name: str, content: bytes) -> None:
    """Put other content into a file of a step, and let its manifest say that it is whole."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["files"][name] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    manifest["checksum"] = checksum(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_pickle_in_the_place_of_a_file_is_refused_and_not_run(name: str, tmp_path: Path) -> None:
    path, done = saved(tmp_path / "ckpt"), tmp_path / "done"
    content = pickle.dumps(Evil(done))
    forged(path, name, content)
    with pytest.raises(CheckpointCorrupt, match=name):
        read(path)
    assert not done.exists()
    # It is what it is said to be.
    pickle.loads(content)
    assert done.exists()


@pytest.mark.parametrize("name", ["optimizer.safetensors", "buffers.safetensors"])
def test_a_file_that_a_run_could_have_written_and_the_manifest_lacks_is_refused(
    name: str, tmp_path: Path
) -> None:
    path = saved(tmp_path)
    (path / "notes.txt").write_text("mine")
    assert is_whole(path)
    (path / name).write_bytes(b"")
    with pytest.raises(CheckpointCorrupt, match=f"does not list '{name}', which is in its folder"):
        read(path)


def test_a_step_whose_weights_were_not_finite_is_kept_and_not_gone_on_from(tmp_path: Path) -> None:
    good = saved(tmp_path, 1, keep=1)
    for step in (2, 3):
        bad = saved(tmp_path, step, keep=1, is_healthy=False)
    # The newest is kept for who looks for the reason, the healthy one to go on from.
    assert write.committed_steps(tmp_path) == [good, bad]
    found, passed = find_newest(tmp_path)
    assert found is not None and found.path == good
    assert len(passed) == 1 and "were not finite" in passed[0] and bad.name in passed[0]
    better = saved(tmp_path, 4, keep=1)
    assert write.committed_steps(tmp_path) == [better]


def test_the_newest_step_is_found_that_is_whole_of_use_and_early_enough(tmp_path: Path) -> None:
    steps = {number: saved(tmp_path, number) for number in (8, 9, 10, 11)}
    (steps[11] / "state.json").unlink()

    def check(found: Checkpoint) -> None:
        if found.step == 10:
            raise CheckpointCorrupt("of no use")

    found, passed = find_newest(tmp_path, check)
    assert found is not None and found.step == 9
    assert "state.json" in passed[0] and passed[1:] == ["of no use"]
    found, passed = find_newest(tmp_path, check, before=steps[9].name)
    assert found is not None and found.step == 8 and passed == []
    assert find_newest(tmp_path, before=steps[8].name) == (None, [])
    assert find_newest(tmp_path / "nowhere") == (None, [])


def test_the_hint_is_not_trusted(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for hint in ("step-000000000009", "../../elsewhere", ""):
        (tmp_path / "LATEST").write_text(hint)
        found, passed = find_newest(tmp_path)
        assert found is not None and found.step == 1 and passed == []


def test_a_step_that_is_not_there_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"was not found. Expected: the folder of a checkpoint"):
        read(tmp_path / "step-000000000001")
    (tmp_path / "step-000000000001").mkdir()
    with pytest.raises(CheckpointCorrupt, match=MANIFEST):
        read(tmp_path / "step-000000000001")


@pytest.mark.parametrize("state", [{"rate": float("nan")}, {"rate": object()}])
def test_a_state_that_json_does_not_have_leaves_no_trace_of_the_step(
    state: dict[str, Any], tmp_path: Path
) -> None:
    first = saved(tmp_path, 1)
    with pytest.raises((TypeError, ValueError)):
        commit(tmp_path, 2, {}, state, is_whole=is_whole, keep=1)
    assert {each.name for each in tmp_path.iterdir()} == {first.name, "LATEST"}
    assert is_whole(first)


def test_a_save_that_is_interrupted_leaves_no_trace_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = saved(tmp_path, 1), write.write_new

    def interrupted(path: Path, content: bytes) -> None:
        if path.name == MANIFEST:
            raise KeyboardInterrupt
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(write, "write_new", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saved(tmp_path, 2)
    assert {each.name for each in tmp_path.iterdir()} == {first.name, "LATEST"}
    assert is_whole(saved(tmp_path, 2))


def test_a_damaged_step_is_moved_aside_and_written_again(tmp_path: Path) -> None:
    path = saved(tmp_path, 1)
    (path / "model.safetensors").write_bytes(b"")
    (path / "more").write_text("litter of the damaged one")
    assert saved(tmp_path, 1, value=7.0) == path
    assert read(path).tensors["model"]["weight"].tolist() == [7.0, 7.0, 7.0]
    assert not (path / "more").exists()
    saved(tmp_path, 2)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]
