"""Commits a step: its files, its manifest with SHA-256, its folder; then deletes old steps."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hotlap.checkpoint.files import make_folder, read_regular, sync_folder, write_new
from hotlap.checkpoint.litter import clear_away, delete, temporary_name, trash_name
from hotlap.errors import StorageError

log = logging.getLogger("hotlap")

SCHEMA, SHARDED = 1, 2
"""Of a step whose files hold whole tensors, and of one to which several ranks wrote their parts:
older versions read the former, and refuse the latter."""
MANIFEST = "MANIFEST.json"
STATE = "state.json"
LATEST = "LATEST"
MANIFEST_LIMIT, PLAIN_LIMIT = 1 << 26, 1 << 20
"""Bytes of any manifest, and of one that lists no parts."""
STEP = re.compile(r"step-\d{12}", re.ASCII)
UNUSABLE = "unusable-"
"""Before the name of a step that a resumed run has passed over."""


def step_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:012d}"


def committed_steps(root: Path) -> list[Path]:
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
    is_healthy: bool = True,
    notice: Callable[[str], None] = log.warning,
) -> Path:
    """Write a step's checkpoint, and return its folder once it is durable.

    Args:
        root: the run's folder of checkpoints; made if missing.
        step: optimizer steps done.
        tensors: name of a file -> its tensors by name.
        state: everything else, as plain data.
        is_whole: True if a committed step is what its manifest says.
        keep: how many committed steps to keep, this one included, 1 or more; where none of them is
            healthy, the newest healthy one as well.
        is_healthy: False if nobody should go on from this step.
        notice: called, in words, with what went wrong though the step is committed.

    Raises:
        StorageError: it could not be written, or the step is there with another content; earlier
            steps are as they were, and nothing of this one takes space.
    """
    final = root / step_name(step)
    contents = _contents(tensors, state)
    files = digests_of(contents)
    temporary = root / temporary_name(str(step))
    try:
        make_folder(root)
        clear_away(root, notice)
        if is_committed(final, files, is_whole):
            return final
        os.mkdir(temporary)
        _fill(temporary, step, contents, files, is_healthy)
        os.rename(temporary, final)
        sync_folder(root)
    except OSError as error:
        forget(temporary, notice)
        raise StorageError(
            f"the checkpoint of step {step} could not be written to '{root}': {error}. Earlier "
            "checkpoints are unchanged. Free some space, or pass another folder with --run-dir."
        ) from error
    except BaseException:
        forget(temporary, notice)
        raise
    name_latest(final, notice)
    retire(final, keep, notice)
    return final


def is_committed(final: Path, files: Mapping[str, Any], is_whole: Callable[[Path], bool]) -> bool:
    """Return whether the step is there with the same content; move a damaged one aside.

    What is committed is never written to. What is damaged is no commit, and is written again by a
    run that was resumed before it.
    """
    if not os.path.lexists(final):
        return False
    if not final.is_dir():
        told = f"{not_a_step(final)} Earlier checkpoints are unchanged."
        raise StorageError(told)
    if not is_whole(final):
        os.rename(final, final.with_name(trash_name()))
        return False
    if json.loads(read_regular(final / MANIFEST, MANIFEST_LIMIT))["files"] == files:
        sync_folder(final.parent)
        return True
    raise StorageError(
        f"checkpoint '{final}' already exists with other contents, so another run saves into this "
        "folder. The checkpoint was not overwritten. Pass a new folder to this run with --run-dir."
    )


def not_a_step(path: Path) -> str:
    """Return the sentence on what is no folder, where a step's should be."""
    return (
        f"'{path}' has the name of a checkpoint, and is not a folder. Move it away, or choose "
        "another folder with --run-dir."
    )


def forget(temporary: Path, notice: Callable[[str], None]) -> None:
    """Free the space that a save has taken which failed."""
    if os.path.lexists(temporary):
        try:
            delete(temporary)
        except OSError as error:
            notice(f"'{temporary}' is incomplete and cannot be deleted: {error}")


def set_aside(path: Path, notice: Callable[[str], None]) -> None:
    """Give a damaged step a name that is no step's: it takes no place of a whole one any more.

    One that says of itself that it is not healthy keeps its name, and links are somebody's own.
    """
    if path.is_symlink() or _health(path) is False:
        return
    aside = path.with_name(f"{UNUSABLE}{path.name}")
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{UNUSABLE}{path.name}-{number}")
    try:
        os.rename(path, aside)
        sync_folder(path.parent)
    except OSError as error:
        notice(f"'{path}' cannot be used, and could not be renamed: {error}")
        return
    notice(f"'{path}' cannot be used, and was renamed to '{aside.name}'. It can be deleted")


def name_latest(final: Path, notice: Callable[[str], None]) -> None:
    """Write the hint: what it says is never trusted, so that it fails is no failure of the save."""
    temporary = final.with_name(temporary_name("latest"))
    try:
        write_new(temporary, final.name.encode())
        os.replace(temporary, final.with_name(LATEST))
        sync_folder(final.parent)
    except OSError as error:
        forget(temporary, notice)
        notice(
            f"'{final}' was saved, but the hint '{final.with_name(LATEST)}' could not be written: "
            f"{error}"
        )


def _contents(
    tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]
) -> dict[str, bytes]:
    contents = {
        f"{name}.safetensors": content_of(group) for name, group in tensors.items() if group
    }
    contents[STATE] = state_content(state)
    return contents


def content_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return what the file of some tensors holds."""
    return save({name: _as_plain_tensor(tensor) for name, tensor in tensors.items()})


def state_content(state: Mapping[str, Any]) -> bytes:
    """Return what the file of the plain data holds."""
    return json.dumps(state, sort_keys=True, allow_nan=False).encode()


def digests_of(contents: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Return what a manifest says of files with these contents."""
    return {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }


def _fill(
    folder: Path,
    step: int,
    contents: Mapping[str, bytes],
    files: Mapping[str, Any],
    is_healthy: bool,
) -> None:
    for name, content in contents.items():
        write_new(folder / name, content)
    manifest = manifest_of(step, files, is_healthy)
    write_new(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
    sync_folder(folder)


def manifest_of(
    step: int, files: Mapping[str, Any], is_healthy: bool, layout: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the manifest of a step; with the layout of its parts where ranks wrote such."""
    manifest: dict[str, Any] = {"schema": SCHEMA, "step": step, "files": files}
    manifest |= {"torch": torch.__version__, "healthy": is_healthy}
    if layout is not None:
        manifest |= {"schema": SHARDED, "tensors": layout}
    return manifest | {"checksum": checksum(manifest)}


def checksum(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, its own checksum left out."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _as_plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    # Shared and strided tensors cannot be written; a copy has memory of its own.
    return tensor.detach().to("cpu", copy=True).contiguous()


def retire(newest: Path, keep: int, notice: Callable[[str], None]) -> None:
    """Delete the oldest steps, each hidden by one rename before anything in it goes.

    Steps beyond the newest were damaged and passed over: they take no place of whole ones.
    """
    own = [path for path in committed_steps(newest.parent) if not path.is_symlink()]
    own = [path for path in own if path.name <= newest.name]
    old, kept = own[:-keep], own[-keep:]
    if not any(map(_is_healthy, kept)):
        last = next((path for path in reversed(old) if _is_healthy(path)), None)
        old = [path for path in old if path != last]
    try:
        for path in old:
            trash = path.with_name(trash_name())
            os.rename(path, trash)
            delete(trash)
    except OSError as error:
        notice(f"'{newest}' was saved, but an older checkpoint could not be deleted: {error}")


def _is_healthy(path: Path) -> bool:
    return _health(path) is True


def _health(path: Path) -> bool | None:
    """Return whether a step says of itself that one may go on from it, None if it says nothing."""
    try:
        manifest = json.loads(read_regular(path / MANIFEST, MANIFEST_LIMIT))
        return manifest.get("healthy", True) is True
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
