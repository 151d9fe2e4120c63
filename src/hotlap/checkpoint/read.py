"""Finds and checks committed steps; all files of a step are checked before any is loaded."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from hotlap.checkpoint.files import read_regular
from hotlap.checkpoint.write import (
    MANIFEST,
    MANIFEST_LIMIT,
    SCHEMA,
    STATE,
    STEP,
    checksum,
    committed_steps,
    step_name,
)
from hotlap.errors import CheckpointCorrupt, MissingFile

_FILE = re.compile(r"[a-z_]{1,32}\.(safetensors|json)", re.ASCII)
_OURS = {f"{name}.safetensors" for name in ("model", "optimizer", "random", "buffers")}
"""Files that a run may write; whatever else lies there is somebody's own."""


@dataclass(frozen=True)
class Checkpoint:
    """A step that was read and proven."""

    path: Path
    step: int
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """Name of a file, without its ending -> its tensors by name."""
    state: Mapping[str, Any]


def find_newest(
    root: Path,
    check: Callable[[Checkpoint], None] = lambda _: None,
    *,
    before: str | None = None,
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest step that can be used, and why newer ones were passed over.

    Args:
        root: a run's folder of checkpoints.
        check: raises `CheckpointCorrupt` for a step that proves itself and is of no use.
        before: only steps whose folders come before this name.
    """
    passed: list[str] = []
    for path in reversed(committed_steps(root)):
        if before is not None and path.name >= before:
            continue
        try:
            found = read(path)
            check(found)
            return found, passed
        except (CheckpointCorrupt, MissingFile) as error:
            # Missing: deleted meanwhile by the run that saves there.
            passed.append(str(error))
    return None, passed


def read(path: Path) -> Checkpoint:
    """Read one committed step.

    Raises:
        MissingFile: there is no such folder.
        CheckpointCorrupt: a file is missing or is not what the manifest says.
    """
    if not path.is_dir():
        raise MissingFile(f"checkpoint '{path}' was not found. Expected: a folder `step-...`.")
    manifest = _manifest(path)
    contents = {name: _content(path, name, about) for name, about in manifest["files"].items()}
    tensors = {}
    for name, content in contents.items():
        if name.endswith(".safetensors"):
            try:
                tensors[name.removesuffix(".safetensors")] = load_tensors(content)
            except Exception as error:
                raise CheckpointCorrupt(
                    f"'{path / name}' cannot be loaded: {error}. Use another checkpoint."
                ) from error
    try:
        state = json.loads(contents[STATE])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"'{path / STATE}' cannot be loaded: {error}. Use another checkpoint."
        ) from error
    return Checkpoint(path, manifest["step"], tensors, state)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        content = read_regular(path / MANIFEST, MANIFEST_LIMIT)
        if len(content) > MANIFEST_LIMIT:
            raise ValueError(f"larger than {MANIFEST_LIMIT} bytes")
        manifest = json.loads(content)
        if manifest["schema"] != SCHEMA:
            raise ValueError(f"schema {manifest['schema']} is not known, only {SCHEMA}")
        if manifest["checksum"] != checksum(manifest):
            raise ValueError("its checksum does not match its contents")
        if STEP.fullmatch(path.name) and path.name != step_name(manifest["step"]):
            raise ValueError(f"it is the manifest of step {manifest['step']}")
        if type(manifest["step"]) is not int or manifest["step"] < 0:
            raise ValueError(f"step {manifest['step']!r} is not a number of steps")
        if manifest.get("healthy", True) is not True:
            raise ValueError("the weights were not finite when they were saved")
        for name, about in manifest["files"].items():
            if not _FILE.fullmatch(name) or set(about) != {"bytes", "sha256"}:
                raise ValueError(f"'{name}' is not a file of a checkpoint")
            if type(about["bytes"]) is not int or about["bytes"] < 0:
                raise ValueError(f"'{name}' has bytes={about['bytes']!r}")
        lying = {each.name for each in path.iterdir()} & _OURS
        for name in sorted(lying - set(manifest["files"])):
            raise ValueError(f"it does not list '{name}', which is in its folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"it has no key {error}" if isinstance(error, KeyError) else error
        raise CheckpointCorrupt(
            f"'{path / MANIFEST}' is not usable: {why}. Use another checkpoint."
        ) from error
    return manifest


def _content(path: Path, name: str, about: Mapping[str, Any]) -> bytes:
    file = path / name
    try:
        # Never more than it should have: it may be growing.
        content = read_regular(file, about["bytes"])
        if len(content) != about["bytes"]:
            raise CheckpointCorrupt(
                f"'{file}' has {file.stat().st_size} bytes. Expected: {about['bytes']}. "
                "Use another checkpoint."
            )
    except OSError as error:
        raise CheckpointCorrupt(
            f"'{file}' cannot be read: {error}. Use another checkpoint."
        ) from error
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise CheckpointCorrupt(
            f"the SHA-256 of '{file}' is not the one in the manifest, so the file has "
            "changed. Use another checkpoint."
        )
    return content
