"""Commits one step of several ranks: each writes the parts that it holds, the first rank the rest.

All ranks take the same phases, and agree after each: if one failed, all raise, and nothing is
committed.

    prepare   each rank makes its files in memory; the first one makes the temporary folder
    write     each rank writes its files, and puts them on the disk
    commit    the first rank writes state and manifest, and gives the folder its name
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.checkpoint.files import make_folder, sync_folder, write_new
from hotlap.checkpoint.layout import Layout, Tensors, shard_name
from hotlap.checkpoint.litter import clear_away, temporary_name
from hotlap.checkpoint.shards import local_of
from hotlap.checkpoint.write import (
    MANIFEST,
    MANIFEST_LIMIT,
    STATE,
    content_of,
    digests_of,
    forget,
    is_committed,
    manifest_of,
    name_latest,
    retire,
    state_content,
    step_name,
)
from hotlap.distributed.reduce import Reduce
from hotlap.errors import StorageError

log = logging.getLogger("hotlap")


@dataclass(frozen=True)
class Commit:
    """What all ranks know of a step that is to be committed."""

    root: Path
    """The run's folder of checkpoints."""
    step: int
    layout: Layout
    """Of the groups that ranks hold parts of."""
    is_healthy: bool = True
    """False if nobody should go on from this step."""


def commit_shards(
    commit: Commit,
    tensors: Tensors,
    state: Mapping[str, Any],
    reduce: Reduce,
    *,
    is_whole: Callable[[Path], bool],
    keep: int,
    notice: Callable[[str], None] = log.warning,
) -> Path:
    """Write the checkpoint of a step together, and return its folder once it is durable.

    Args:
        commit: the same on every rank.
        tensors: what this rank writes: its parts, and on the first rank what is whole.
        state: everything else, as plain data; that of the first rank is kept.
        reduce: the ranks; each of them makes this call.
        is_whole: see `hotlap.checkpoint.write.commit`, as are `keep` and `notice`.

    Raises:
        StorageError: any rank could not write: the same on every rank. Earlier steps are as they
            were, and nothing of this one takes space.
        RunError: another rank is gone.
    """
    final = commit.root / step_name(commit.step)
    is_first = reduce.rank == 0
    temporary: Path | None = commit.root / temporary_name(str(commit.step)) if is_first else None
    contents: dict[str, bytes] = {}

    def serialize() -> dict[str, Any]:
        contents.update(_contents(commit.layout, tensors, reduce))
        if is_first:
            contents[STATE] = state_content(state)
        return digests_of(contents)

    def make() -> str | None:
        if temporary is None:
            return None
        make_folder(commit.root)
        clear_away(commit.root, notice)
        if is_committed(final, files, is_whole):
            return None
        os.mkdir(temporary)
        return temporary.name

    def fill() -> None:
        for file, content in contents.items():
            write_new(folder / file, content)
        sync_folder(folder)

    def finish() -> None:
        if temporary is not None:
            _finish(commit, temporary, final, files)

    try:
        told = _together(commit, reduce, serialize)
        files = {name: about for each in told for name, about in each.items()}
        name = _together(commit, reduce, make)[0]
        if name is None:
            return final
        folder = commit.root / name
        _together(commit, reduce, fill)
        _together(commit, reduce, finish)
    except BaseException:
        if temporary is not None:
            forget(temporary, notice)
        raise
    if is_first:
        name_latest(final, notice)
        retire(final, keep, notice)
    return final


def _together(commit: Commit, reduce: Reduce, work: Callable[[], Any]) -> list[Any]:
    """Do a rank's share of a phase, and return what each rank returned, by rank.

    Raises:
        StorageError: it failed on any rank; each says the same.
    """
    cause = None
    said: dict[str, Any] = {}
    try:
        said["done"] = work()
    except Exception as error:
        # Whatever it is: the other ranks wait for this one.
        cause = error
        known = isinstance(error, OSError | StorageError)
        said["failed"] = str(error) if known else f"{type(error).__name__}: {error}"
    everything = reduce.gather(said)
    failed = [
        f"rank {number}: {each['failed'].removesuffix('.')}"
        for number, each in enumerate(everything)
        if "failed" in each
    ]
    if failed:
        raise StorageError(
            f"the checkpoint of step {commit.step} could not be written to '{commit.root}' by "
            f"{len(failed)} of {reduce.world} ranks: {'; '.join(failed)}. Earlier checkpoints are "
            "unchanged. Free some space, or pass a folder that all ranks can write to with "
            "--run-dir."
        ) from cause
    return [each["done"] for each in everything]


def _contents(layout: Layout, tensors: Tensors, reduce: Reduce) -> dict[str, bytes]:
    """Return the files of this rank: one for each group that is held in parts, empty or not."""
    whole = {f"{group}.safetensors": group for group in tensors if group not in layout}
    parts = {shard_name(group, reduce.rank, reduce.world): group for group in layout}
    return {
        file: content_of({name: local_of(each) for name, each in tensors.get(group, {}).items()})
        for file, group in {**parts, **whole}.items()
        if file in parts or tensors[group]
    }


def _finish(commit: Commit, temporary: Path, final: Path, files: Mapping[str, Any]) -> None:
    """Write the manifest, and give the folder its name; both are on the disk."""
    manifest = manifest_of(commit.step, files, commit.is_healthy, commit.layout)
    content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    if len(content) > MANIFEST_LIMIT:
        raise StorageError(
            f"the checkpoint's manifest, which lists the parts of all ranks, has {len(content)} "
            f"bytes. Expected: at most {MANIFEST_LIMIT}. Use fewer ranks."
        )
    write_new(temporary / MANIFEST, content)
    sync_folder(temporary)
    os.rename(temporary, final)
    sync_folder(final.parent)
