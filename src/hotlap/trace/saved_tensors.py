"""Reads the tensors that a node of an autograd graph has saved, as far as no hook makes them."""

from typing import Any

import torch


def read_saved(node: Any, name: str) -> list[torch.Tensor]:
    """Return the tensors that a node has saved under a name, without those behind a hook.

    To read one of those is to call the script's hook: recomputation would compute its whole block
    again, and a hook that gives each tensor once would have none left for the backward.

    Args:
        node: of an autograd graph.
        name: as in `_saved_self`, or `saved_tensors` of a function that Python defines.

    Raises:
        RuntimeError: a backward has been through the node, and freed what it saved.
    """
    raw = getattr(node, f"_raw{name}" if name.startswith("_") else f"_raw_{name}", ())
    parts = raw if isinstance(raw, list | tuple) else [raw]
    if any(getattr(part, "unpack_hook", None) is not None for part in parts):
        return []
    saved = getattr(node, name)
    found = saved if isinstance(saved, list | tuple) else [saved]
    return [part for part in found if isinstance(part, torch.Tensor)]
