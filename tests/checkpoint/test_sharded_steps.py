"""A step that several ranks write is read whole by anyone, and is there for all of them or none."""

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.checkpoint import files, write, write_shards
from hotlap.checkpoint.layout import describe, layout_of
from hotlap.checkpoint.read import find_newest, read
from hotlap.checkpoint.write import MANIFEST, commit, committed_steps
from hotlap.checkpoint.write_shards import Commit, commit_shards
from hotlap.errors import CheckpointCorrupt, StorageError
from tests.checkpoint.rank_threads import on_ranks
from tests.checkpoint.sharded import STATE, holds, save, saved, state_of
from tests.checkpoint.test_manifest import forge
from tests.checkpoint.test_steps import damages
from tests.checkpoint.whole import is_whole


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_what_ranks_wrote_is_read_whole(world: int, tmp_path: Path) -> None:
    path = saved(tmp_path, 4, world)
    found = read(path)
    assert (found.step, found.state) == (4, STATE) and holds(path, 4)
    shards = {
        f"{g}-{r + 1:05d}-of-{world:05d}.safetensors"
        for r in range(world)
        for g in ("model", "optimizer")
    }
    rest = {"random.safetensors", "state.json", MANIFEST}
    assert {each.name for each in path.iterdir()} == shards | rest
    assert (tmp_path / "LATEST").read_text() == path.name
    # Each rank wrote its own part, not all of it.
    sizes = [(path / name).stat().st_size for name in sorted(shards)]
    assert world == 1 or max(sizes) < len(
        write.content_of({**state_of(4)["model"], **state_of(4)["optimizer"]})
    )


def test_a_step_that_no_rank_holds_in_parts_is_what_it_always_was(tmp_path: Path) -> None:
    commit(tmp_path, 1, state_of(1), STATE, is_whole=is_whole, keep=1)
    manifest = json.loads((tmp_path / "step-000000000001" / MANIFEST).read_text())
    assert manifest["schema"] == 1
    assert manifest.keys() == {"schema", "step", "files", "torch", "healthy", "checksum"}
    sharded = json.loads((saved(tmp_path, 2) / MANIFEST).read_text())
    # Versions that know nothing of parts refuse it by its number.
    assert sharded["schema"] == 2
    assert sharded.keys() == manifest.keys() | {"tensors"}


def test_both_kinds_of_steps_are_retired_and_found_alike(tmp_path: Path) -> None:
    for step in (1, 2):
        commit(tmp_path, step, state_of(step), STATE, is_whole=is_whole, keep=2)
    saved(tmp_path, 3, keep=2)
    assert [path.name[-1] for path in committed_steps(tmp_path)] == ["2", "3"]
    commit(tmp_path, 4, state_of(4), STATE, is_whole=is_whole, keep=2)
    found, passed = find_newest(tmp_path, before="step-000000000004")
    assert found is not None and found.step == 3 and not passed


def test_a_step_that_is_there_is_ours_only_with_the_same_content(tmp_path: Path) -> None:
    path = saved(tmp_path, 1)
    before = (path / MANIFEST).stat()
    assert saved(tmp_path, 1) == path
    refused = on_ranks(3, lambda reduce: save(tmp_path, 1, reduce))
    assert all("with other contents" in str(error) for error in refused)
    assert (path / MANIFEST).stat() == before
    (path / "model-00002-of-00002.safetensors").write_bytes(b"")
    assert saved(tmp_path, 1) == path and holds(path, 1)


def failing(patch: pytest.MonkeyPatch, module: Any, name: str, fails: Callable[..., bool]) -> None:
    """Let a function of a module raise where `fails` says so of its arguments."""
    real = getattr(module, name)

    def wrapped(*given: Any, **options: Any) -> Any:
        if fails(*given):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*given, **options)

    patch.setattr(module, name, wrapped)


def _opened(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _of(rank: int, path: Any) -> bool:
    """True if a path is the file of a rank."""
    return f"-{rank + 1:05d}-of-" in str(path)


FAULTS: dict[tuple[str, tuple[int, ...]], Any] = {
    ("prepare", (0,)): (write_shards, "make_folder", lambda *_: True),
    ("prepare", (1,)): (write_shards, "_contents", lambda *given: given[2].rank == 1),
    ("prepare", (0, 1)): (write_shards, "_contents", lambda *_: True),
    ("write", (0,)): (write_shards, "write_new", lambda path, _: _of(0, path)),
    ("write", (1,)): (write_shards, "write_new", lambda path, _: _of(1, path)),
    ("write", (0, 1)): (write_shards, "write_new", lambda path, _: "-of-" in str(path)),
    ("sync", (0,)): (files.os, "fsync", lambda each: _of(0, _opened(each))),
    ("sync", (1,)): (files.os, "fsync", lambda each: _of(1, _opened(each))),
    ("sync", (0, 1)): (files.os, "fsync", lambda each: "-of-" in _opened(each)),
    ("commit", (0,)): (write_shards, "write_new", lambda path, _: MANIFEST in str(path)),
    ("rename", (0,)): (write_shards.os, "rename", lambda *_: True),
}
"""What fails, on which ranks -> a function that raises, and of which arguments."""


@pytest.mark.parametrize("where", FAULTS, ids=str)
def test_whichever_rank_fails_all_say_so_and_nothing_is_committed(
    where: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ckpt"
    first = saved(root, 1)
    before = {each: each.stat() for each in first.iterdir()}
    with monkeypatch.context() as patch:
        failing(patch, *FAULTS[where])
        said = on_ranks(2, lambda reduce: save(root, 2, reduce))
    assert all(type(error) is StorageError for error in said), said
    assert str(said[0]) == str(said[1])
    told = [rank for rank in (0, 1) if f"rank {rank}: " in str(said[0])]
    assert told == [*where[1]] and "No space left" in str(said[0])
    assert "step 2 could not be written" in str(said[0])
    assert {each.name for each in root.iterdir()} == {first.name, "LATEST"}
    assert {each: each.stat() for each in first.iterdir()} == before and holds(first, 1)
    assert holds(saved(root, 2), 2)


def test_a_folder_that_one_rank_does_not_see_is_told(tmp_path: Path) -> None:
    first = saved(tmp_path / "a", 1)
    said = on_ranks(2, lambda reduce: save(tmp_path / "ab"[reduce.rank], 2, reduce))
    assert all("rank 1: [Errno 2] No such file" in str(error) for error in said), said
    assert {each.name for each in (tmp_path / "a").iterdir()} == {first.name, "LATEST"}


def test_a_step_whose_weights_were_not_finite_is_kept_and_not_resumed_from(tmp_path: Path) -> None:
    good = saved(tmp_path, 1)

    def spoiled(reduce: Any) -> Path:
        own = {"model": {}, "optimizer": {}}
        made = Commit(tmp_path, 2, layout_of(reduce.gather(describe(own))), is_healthy=False)
        return commit_shards(made, own, STATE, reduce, is_whole=is_whole, keep=1)

    bad = on_ranks(2, spoiled)[0]
    assert committed_steps(tmp_path) == [good, bad]
    found, passed = find_newest(tmp_path)
    assert found is not None and found.path == good and "were not finite" in passed[0]


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", MANIFEST])
def test_wherever_a_file_of_a_rank_is_altered_or_cut_it_is_seen(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    for damage in damages(path / name):
        if name == MANIFEST and damage == "one byte more":
            continue
        with pytest.raises(CheckpointCorrupt) as refused:
            read(path)
        assert name in str(refused.value), damage
    assert holds(path, 1)


def test_a_file_of_another_step_in_the_place_of_a_ranks_is_seen(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    name = "model-00002-of-00002.safetensors"
    (second / name).write_bytes((first / name).read_bytes())
    with pytest.raises(CheckpointCorrupt, match=f"{name}' has changed.*SHA-256"):
        read(second)


def piece(manifest: Any, number: int = 0) -> Any:
    return manifest["tensors"]["model"]["0.weight"]["pieces"][number]


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "gap": (lambda m: piece(m).update(shape=[2, 3]), "of '0.weight' the boxes hold 12 of 15"),
    "overlap": (lambda m: piece(m, 1).update(begin=[2, 0]), "overlap"),
    "no pieces": (lambda m: m["tensors"]["model"]["0.weight"].update(pieces=[]), "hold 0 of 15"),
    "moved": (lambda m: piece(m, 1).update(begin=[4, 0]), "is not within the shape [5, 3]"),
    "negative begin": (lambda m: piece(m).update(begin=[-1, 0]), "has the size -1"),
    "negative shape": (lambda m: piece(m).update(shape=[-3, -3]), "has the size -3"),
    "another dimension": (lambda m: piece(m).update(begin=[0]), "has not the dimensions"),
    "true": (lambda m: piece(m).update(begin=[False, 0]), "has the size False"),
    "fraction": (lambda m: piece(m).update(begin=[0.0, 0]), "has the size 0.0"),
    "text": (lambda m: piece(m).update(begin="00"), "Expected: a list of sizes"),
    "many dimensions": (lambda m: piece(m).update(begin=[0] * 999), "Expected: a list of sizes"),
    "huge dimension": (lambda m: piece(m).update(shape=[10**30, 3]), "has the size 1000000"),
    "a path": (lambda m: piece(m).update(file="../../secret"), "as no rank writes it"),
    "no text": (lambda m: piece(m).update(file=["x"]), "unhashable"),
    "twice in a file": (
        lambda m: piece(m, 1).update(file=piece(m)["file"]),
        "as no rank writes it",
    ),
    "a file of another group": (
        lambda m: piece(m).update(file="optimizer-00001-of-00002.safetensors"),
        "as no rank writes it",
    ),
    "more": (lambda m: piece(m).update(mode=1), "is not described by file, begin and shape"),
    "another dtype": (
        lambda m: m["tensors"]["model"]["0.weight"].update(dtype="torch.float64"),
        "Expected: ('torch.float64', [3, 3])",
    ),
    "no dtype": (
        lambda m: m["tensors"]["model"]["0.weight"].update(dtype="os.system"),
        "dtype 'os.system', which is not known",
    ),
    "a dtype of the same size": (
        lambda m: m["tensors"]["model"]["0.weight"].update(dtype="torch.int32"),
        "Expected: ('torch.int32', [3, 3])",
    ),
    "no shape": (
        lambda m: m["tensors"]["model"]["0.weight"].pop("shape"),
        "is not described by dtype, shape and pieces",
    ),
    "a tensor less": (lambda m: m["tensors"]["model"].pop("0.bias"), "Expected: nothing"),
    "another name": (
        lambda m: m["tensors"]["model"].update(new=m["tensors"]["model"]["0.bias"]),
        "holds nothing of 'new'",
    ),
    "no tensors": (lambda m: m.pop("tensors"), "it has no key 'tensors'"),
    "a list of tensors": (lambda m: m.update(tensors=[]), "Expected: dict"),
    "a group of nothing": (lambda m: m["tensors"].update(model=[]), "are not a dict"),
    "a group less": (lambda m: m["tensors"].pop("model"), "its tensors have no such group"),
    "a group without files": (lambda m: m["tensors"].update(x={}), "no file of the group 'x'"),
    "a group of a path": (lambda m: m["tensors"].update({"../x": {}}), "is not a group"),
    "a whole group": (lambda m: m["tensors"].update(random={}), "is not a group"),
    "a file elsewhere": (
        lambda m: m["files"].update(
            {"model-00001-of-00002.safetensors/../../x": {"bytes": 0, "sha256": ""}}
        ),
        "is not a file of a checkpoint",
    ),
    "plain": (lambda m: m.update(schema=1), "is not a file of a checkpoint"),
    "later": (lambda m: m.update(schema=3), "schema 3 is not known, only 1 and 2"),
}


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = saved(tmp_path_factory.mktemp("lies"))
    return path, (path / MANIFEST).read_bytes()


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(lie: str, step: tuple[Path, bytes]) -> None:
    path, content = step
    change, words = LIES[lie]
    try:
        forge(path, change)
        with pytest.raises(CheckpointCorrupt) as refused:
            read(path)
        assert words in str(refused.value)
    finally:
        (path / MANIFEST).write_bytes(content)
    assert is_whole(path)


def test_a_huge_tensor_is_refused_before_there_is_memory_for_it(tmp_path: Path) -> None:
    path = saved(tmp_path)

    def huge(manifest: Any) -> None:
        tensor = manifest["tensors"]["model"]["0.weight"]
        tensor["shape"] = [2**40, 3]
        tensor["pieces"][0]["shape"] = [2**40 - 2, 3]
        tensor["pieces"][1]["begin"] = [2**40 - 2, 0]

    forge(path, huge)
    with pytest.raises(CheckpointCorrupt, match=r"need \d+ bytes, and the file has"):
        read(path)


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "random.safetensors"])
def test_a_file_that_is_missing_is_told_by_its_name(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / name).unlink()
    with pytest.raises(CheckpointCorrupt, match=name):
        read(path)


def test_a_file_that_the_manifest_lacks_is_told_by_its_name(tmp_path: Path) -> None:
    path, name = saved(tmp_path), "model-00002-of-00002.safetensors"
    forge(path, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(CheckpointCorrupt, match=f"does not list '{name}'"):
        read(path)
    (path / name).unlink()
    with pytest.raises(CheckpointCorrupt, match=f"does not list '{name}'"):
        read(path)


def test_of_another_world_no_file_is_taken(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "model-00001-of-00003.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointCorrupt, match="does not list 'model-00001-of-00003"):
        read(path)


def test_a_random_change_of_a_manifest_is_refused_or_changes_nothing(
    step: tuple[Path, bytes],
) -> None:
    path, content = step
    wanted = state_of(1)
    draws = random.Random(20)
    refused = 0
    values: list[Any] = [-1, 0, 1, 2, 3, 5, 2**31, 2**63, 1.5, None, True, "", "x", [], {}, [0, 0]]

    def change(node: Any) -> None:
        while True:
            keys = list(node) if isinstance(node, dict) else [*range(len(node))]
            if not keys:
                return
            key = draws.choice(keys)
            below = node[key]
            if isinstance(below, dict | list) and below and draws.random() < 0.85:
                node = below
                continue
            node[key] = draws.choice(values)
            return

    for _ in range(200):
        try:
            forge(path, lambda manifest: change(manifest["tensors"]))
            found = read(path)
            for group, names in wanted.items():
                for name, tensor in names.items():
                    assert torch.equal(found.tensors[group][name], tensor)
        except CheckpointCorrupt:
            refused += 1
        finally:
            (path / MANIFEST).write_bytes(content)
    assert refused > 150
