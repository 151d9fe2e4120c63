"""A manifest that somebody wrote: its checksum is right, and what it says is not believed."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.checkpoint.read import read
from hotlap.checkpoint.write import MANIFEST, checksum, commit
from hotlap.errors import CheckpointCorrupt
from tests.checkpoint.whole import is_whole

SECRET = b'{"a": 1}'


def saved(root: Path) -> Path:
    tensors = {"model": {"weight": torch.ones(3)}}
    return commit(root / "ckpt", 4, tensors, {"a": 1}, is_whole=is_whole, keep=2)


def forge(step: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a step's manifest, and let its checksum say that it is whole."""
    manifest = json.loads((step / MANIFEST).read_bytes())
    change(manifest)
    manifest["checksum"] = checksum(manifest)
    (step / MANIFEST).write_text(json.dumps(manifest))


def naming(name: str) -> Callable[[dict[str, Any]], None]:
    about = {"bytes": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest()}
    return lambda manifest: manifest["files"].update({name: about})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (naming("../secret.json"), "'../secret.json' is not a file of a checkpoint"),
        (naming("a.json/../../secret.json"), "is not a file of a checkpoint"),
        (naming("/etc/passwd"), "is not a file of a checkpoint"),
        (naming("MANIFEST.json"), "is not a file of a checkpoint"),
        (naming(""), "is not a file of a checkpoint"),
        (lambda m: m["files"]["state.json"].update(mode=1), "is not a file of a checkpoint"),
        (lambda m: m["files"]["state.json"].pop("sha256"), "is not a file of a checkpoint"),
        (lambda m: m["files"].pop("state.json"), "state.json"),
        (lambda m: m.update(schema=3), "schema 3 is not known, only 1 and 2"),
        (lambda m: m.update(schema=2), "it has no key 'tensors'"),
        (lambda m: m.update(step=5), "it is the manifest of step 5"),
        (lambda m: m.update(notes="x" * 2**21), "larger than"),
    ],
)
def test_what_no_run_writes_is_no_step(
    change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path
) -> None:
    step = saved(tmp_path)
    (step.parent / "secret.json").write_bytes(SECRET)
    forge(step, lambda manifest: None)
    assert read(step).step == 4
    forge(step, change)
    with pytest.raises(CheckpointCorrupt) as caught:
        read(step)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["a link", "a FIFO", "a folder", "nothing"])
@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_only_regular_files_are_read(kind: str, name: str, tmp_path: Path) -> None:
    step = saved(tmp_path)
    file = step / name
    elsewhere = file.rename(tmp_path / name)
    if kind == "a link":
        file.symlink_to(elsewhere)
    elif kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a folder":
        file.mkdir()
    with pytest.raises(CheckpointCorrupt, match=r"not a regular file|No such file"):
        read(step)


def test_a_copy_of_a_step_may_have_any_name_and_no_other_steps(tmp_path: Path) -> None:
    step = saved(tmp_path)
    best = shutil.copytree(step, tmp_path / "best")
    assert read(best).step == 4
    with pytest.raises(CheckpointCorrupt, match="the manifest of step 4"):
        read(step.rename(step.with_name("step-000000000009")))
