"""Writes what a proof keeps of a step, or says why that cannot be kept."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file


def write_step(tensors: Mapping[str, torch.Tensor], path: Path, meta: Mapping[str, Any]) -> str:
    """Write tensors to a file; return why that cannot be done, "" if it was."""
    try:
        save_file(dict(tensors), path, metadata={"hotlap": json.dumps(meta)})
    except (KeyError, SafetensorError) as error:
        # That is how safetensors says that it has no name for a format: others fail otherwise.
        names = sorted({str(each.dtype).removeprefix("torch.") for each in tensors.values()})
        unknown = [name for name in names if name in str(error)]
        if not unknown:
            raise
        return f"a tensor has a format that cannot be kept: {unknown[-1]}"
    return ""
