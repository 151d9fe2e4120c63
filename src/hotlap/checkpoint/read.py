"""Finds and reads committed steps, once manifest, sizes and SHA-256 of all files are right."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from hotlap.checkpoint.files import read_chunks, read_regular
from hotlap.checkpoint.layout import SHARD, assemble, check_layout
from hotlap.checkpoint.write import (
    MANIFEST,
    MANIFEST_LIMIT,
    PLAIN_LIMIT,
    SCHEMA,
    SHARDED,
    STATE,
    STEP,
    checksum,
    committed_steps,
    step_name,
)
from hotlap.errors import CheckpointCorrupt, MissingFile

_FILE = re.compile(r"[a-z_]{1,32}\.(safetensors|json)", re.ASCII)
_OURS = re.compile(r"(model|optimizer|random|buffers)(-\d{5}-of-\d{5})?\.safetensors", re.ASCII)
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
            passed.append(why_passed(error))
    return None, passed


def why_passed(error: Exception) -> str:
    """Return what is wrong with a step, without what to do about it: an older one is read."""
    return str(error).partition(". Pass the run's folder")[0]


def read(path: Path) -> Checkpoint:
    """Read one committed step, whole, whoever wrote its files.

    Raises:
        MissingFile: there is no such folder.
        CheckpointCorrupt: a file is missing or is not what the manifest says.
    """
    manifest = read_manifest(path)
    contents = {
        name: b"".join(read_proven(path, name, about)) for name, about in manifest["files"].items()
    }
    try:
        state = json.loads(contents.pop(STATE))
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"'{path / STATE}' cannot be loaded: {error}. Pass the run's folder instead of this "
            "checkpoint, to use its newest intact one."
        ) from error
    tensors: dict[str, Mapping[str, torch.Tensor]] = {}
    parts: dict[str, dict[str, Mapping[str, torch.Tensor]]] = {}
    for name in [name for name in contents if name.endswith(".safetensors")]:
        # What was loaded is not kept twice.
        found = _load(path / name, contents.pop(name))
        match = SHARD.fullmatch(name)
        if match is None:
            tensors[name.removesuffix(".safetensors")] = found
        else:
            parts.setdefault(match["group"], {})[name] = found
    for group in list(parts):
        try:
            tensors[group] = assemble(manifest["tensors"][group], parts.pop(group))
        except (ValueError, RuntimeError) as error:
            raise CheckpointCorrupt(
                f"the parts that the ranks saved in '{path}' do not fit together: {error}. Pass "
                "the run's folder instead of this checkpoint, to use its newest intact one."
            ) from error
    return Checkpoint(path, manifest["step"], tensors, state)


def _load(file: Path, content: bytes) -> dict[str, torch.Tensor]:
    try:
        return load_tensors(content)
    except Exception as error:
        raise CheckpointCorrupt(
            f"'{file}' cannot be loaded: {error}. Pass the run's folder instead of this "
            "checkpoint, to use its newest intact one."
        ) from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a step, once all that it says of files and parts could be true.

    Raises:
        MissingFile: there is no such folder.
        CheckpointCorrupt: no run writes such a manifest.
    """
    if not path.is_dir():
        raise MissingFile(
            f"checkpoint '{path}' was not found. Expected: the folder of a checkpoint, as in "
            "RUN/ckpt/step-000000000500, or the folder RUN of the run."
        )
    try:
        content = read_regular(path / MANIFEST, MANIFEST_LIMIT)
        if len(content) > MANIFEST_LIMIT:
            raise ValueError(f"larger than {MANIFEST_LIMIT} bytes")
        manifest = json.loads(content)
        if manifest["schema"] not in (SCHEMA, SHARDED):
            known = f"{SCHEMA} and {SHARDED}"
            raise ValueError(f"schema {manifest['schema']} is not known, only {known}")
        if manifest["schema"] == SCHEMA and len(content) > PLAIN_LIMIT:
            raise ValueError(f"larger than {PLAIN_LIMIT} bytes")
        if manifest["checksum"] != checksum(manifest):
            raise ValueError("its checksum does not match its contents")
        _check_manifest(path, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"it has no key {error}" if isinstance(error, KeyError) else error
        raise CheckpointCorrupt(
            f"'{path / MANIFEST}' is not a valid manifest: {why}. Pass the run's folder instead of "
            "this checkpoint, to use its newest intact one."
        ) from error
    return manifest


def _check_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    if STEP.fullmatch(path.name) and path.name != step_name(manifest["step"]):
        raise ValueError(f"it is the manifest of step {manifest['step']}")
    if type(manifest["step"]) is not int or manifest["step"] < 0:
        raise ValueError(f"step {manifest['step']!r} is not a number of steps")
    if manifest.get("healthy", True) is not True:
        raise ValueError("the weights were not finite when they were saved")
    is_sharded, files = manifest["schema"] == SHARDED, manifest["files"]
    for name, about in files.items():
        is_file = _FILE.fullmatch(name) or (is_sharded and SHARD.fullmatch(name))
        if not is_file or set(about) != {"bytes", "sha256"}:
            raise ValueError(f"'{name}' is not a file of a checkpoint")
        if type(about["bytes"]) is not int or about["bytes"] < 0:
            raise ValueError(f"'{name}' has bytes={about['bytes']!r}")
    lying = {each.name for each in path.iterdir() if _OURS.fullmatch(each.name)}
    for name in sorted(lying - set(files)):
        raise ValueError(f"it does not list '{name}', which is in its folder")
    if is_sharded:
        # What it says of a file's bytes counts once the file has that many.
        sizes = {name: os.lstat(path / name).st_size for name in files}
        check_layout(manifest["tensors"], sizes)


def read_proven(path: Path, name: str, about: Mapping[str, Any]) -> Iterator[bytes]:
    """Give a file of a step in chunks; what they are worth is known at the end.

    Args:
        path: the step's folder.
        name: of the file.
        about: what the manifest says of it.

    Raises:
        CheckpointCorrupt: it is not what the manifest says.
    """
    file, size, digest = path / name, 0, hashlib.sha256()
    try:
        # Never more than it should have: it may be growing.
        for part in read_chunks(file, about["bytes"]):
            size += len(part)
            digest.update(part)
            yield part
        if size != about["bytes"]:
            raise CheckpointCorrupt(
                f"'{file}' is damaged: it has {file.stat().st_size} bytes, but the manifest says "
                f"{about['bytes']}. Pass the run's folder instead of this checkpoint, to use its "
                "newest intact one."
            )
    except OSError as error:
        raise CheckpointCorrupt(
            f"'{file}' cannot be read: {error}. Pass the run's folder instead of this checkpoint, "
            "to use its newest intact one."
        ) from error
    if digest.hexdigest() != about["sha256"]:
        raise CheckpointCorrupt(
            f"'{file}' has changed since it was saved: its SHA-256 is not the one in the manifest. "
            "Pass the run's folder instead of this checkpoint, to use its newest intact one."
        )
