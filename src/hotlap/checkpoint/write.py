"""Commits one step: files, then their folder, then its name, each on the disk before the next."""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hotlap.errors import StorageError

SCHEMA = 1
MANIFEST = "MANIFEST.json"
STATE = "state.json"
LATEST = "LATEST"
TEMPORARY = ".tmp-"
TRASH = ".trash-"
STEP = re.compile(r"step-\d{12}", re.ASCII)


def step_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:012d}"


def committed(root: Path) -> list[Path]:
    """Return the folders of a run's steps, oldest first."""
    found = root.iterdir() if root.is_dir() else ()
    return sorted(path for path in found if STEP.fullmatch(path.name) and path.is_dir())


def commit(
    root: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    state: Mapping[str, Any],
    *,
    is_whole: Callable[[Path], bool],
    keep: int,
) -> Path:
    """Write a step's checkpoint, and return its folder once it is durable.

    Args:
        root: the run's folder of checkpoints; made if missing.
        step: optimizer steps done.
        tensors: name of a file -> its tensors by name.
        state: everything else, as plain data.
        is_whole: True if a committed step is what its manifest says.
        keep: how many committed steps to keep, this one included, 1 or more.

    Raises:
        StorageError: it could not be written, or the step is there with another content; earlier
            steps are as they were.
    """
    final = root / step_name(step)
    contents = _contents(tensors, state)
    files = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    try:
        root.mkdir(parents=True, exist_ok=True)
        _clear_away(root)
        if final.exists():
            # What is committed is never written to; what is damaged is no commit, and is written
            # again by a run that was resumed before it.
            if is_whole(final):
                if json.loads((final / MANIFEST).read_bytes())["files"] == files:
                    return final
                raise StorageError(
                    f"'{final}' is there already, with another content: another run saves into "
                    "this folder. What is there stays as it is. Allowed: a folder for each run."
                )
            os.rename(final, root / f"{TRASH}{final.name}-{uuid.uuid4().hex}")
        temporary = root / f"{TEMPORARY}{step}-{os.getpid()}-{uuid.uuid4().hex}"
        temporary.mkdir()
        _fill(temporary, step, contents, files)
        os.rename(temporary, final)
        _sync_folder(root)
        _write(root / f"{TEMPORARY}latest-{os.getpid()}", final.name.encode())
        os.replace(root / f"{TEMPORARY}latest-{os.getpid()}", root / LATEST)
        _sync_folder(root)
        _retire(final, keep)
    except OSError as error:
        raise StorageError(
            f"the checkpoint of step {step} could not be written to '{root}': {error}. Earlier "
            "checkpoints are as they were. Free some space, or name another folder."
        ) from error
    return final


def _contents(
    tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]
) -> dict[str, bytes]:
    contents = {
        f"{name}.safetensors": save({k: _plain(v) for k, v in group.items()})
        for name, group in tensors.items()
        if group
    }
    contents[STATE] = json.dumps(state, sort_keys=True, allow_nan=False).encode()
    return contents


def _fill(folder: Path, step: int, contents: Mapping[str, bytes], files: Mapping[str, Any]) -> None:
    for name, content in contents.items():
        _write(folder / name, content)
    manifest = {"schema": SCHEMA, "step": step, "torch": torch.__version__, "files": files}
    manifest["checksum"] = checksum(manifest)
    _write(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
    _sync_folder(folder)


def checksum(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, its own checksum left out."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    # Shared and strided tensors cannot be written; a copy has memory of its own.
    return tensor.detach().to("cpu", copy=True).contiguous()


def _write(path: Path, content: bytes) -> None:
    with path.open("xb" if path.name != LATEST else "wb", buffering=0) as stream:
        view = memoryview(content)
        while view:
            view = view[stream.write(view) :]
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _clear_away(root: Path) -> None:
    """Delete what a writer that is gone has left behind."""
    for path in root.iterdir():
        if path.name.startswith(TRASH) or (path.name.startswith(TEMPORARY) and not _lives(path)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _lives(path: Path) -> bool:
    parts = path.name.split("-")
    if len(parts) < 3 or not parts[2].isdigit():
        return False
    try:
        os.kill(int(parts[2]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(parts[2]) != os.getpid()


def _retire(newest: Path, keep: int) -> None:
    """Delete the oldest steps, each hidden by one rename before anything in it goes.

    Steps beyond the newest were damaged and passed over: they take no place of whole ones.
    """
    own = [path for path in committed(newest.parent) if not path.is_symlink()]
    for old in [path for path in own if path.name <= newest.name][:-keep]:
        trash = newest.parent / f"{TRASH}{uuid.uuid4().hex}"
        os.rename(old, trash)
        shutil.rmtree(trash)
