"""Reads the weights at a path: a run's folder, a folder `step-...`, or a file."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hotlap.checkpoint.files import check_path
from hotlap.checkpoint.foreign import fit_to_model, is_foreign, read_foreign
from hotlap.engine.state.finding import find
from hotlap.engine.state.weights import extra_of
from hotlap.errors import MissingFile

log = logging.getLogger("hotlap")


def weights_of(
    source: str | Path,
    wanted: Mapping[str, torch.Tensor],
    notice: Callable[[str], None] = log.info,
) -> dict[str, torch.Tensor]:
    """Return the weights of a run's folder, of a folder `step-...`, or of a file.

    Args:
        source: see `hotlap.checkpoint.foreign` for the files.
        wanted: the model's own state dict.
        notice: called, in words, with what they are of, and why newer steps were passed over.

    Raises:
        MissingFile: it is not there.
        UsageError: the weights are those of another model.
        CheckpointCorrupt: it is not what it says it is.
    """
    found = read_stored_weights(source, notice)
    notice(f"loading weights from '{found.path}'")
    return fit_to_model(found.weights, wanted, found.path)


@dataclass(frozen=True)
class StoredWeights:
    """What a model is put together from."""

    path: Path
    weights: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Those that no state dict has."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What modules gave by `get_extra_state`."""


def read_stored_weights(source: str | Path, notice: Callable[[str], None]) -> StoredWeights:
    """Return what a path holds; it may be of another model.

    Args:
        source: see `weights_of`.
        notice: called, in words, with why newer steps were passed over.

    Raises:
        MissingFile: it is not there.
        CheckpointCorrupt: it is not what it says it is.
    """
    path = Path(source)
    check_path(path)
    if is_foreign(path):
        return StoredWeights(path, read_foreign(path))
    if not path.is_dir():
        raise MissingFile(
            f"'{path}' was not found. Expected: a run's folder, a folder `step-...`, or a file of "
            "weights."
        )
    saved, passed = find(str(path), None)
    for why in passed:
        notice(f"skipped: {why}")
    assert saved is not None
    buffers = saved.tensors.get("buffers", {})
    return StoredWeights(saved.path, saved.tensors["model"], buffers, extra_of(saved.state))
