"""The graphs of outputs and losses, and whether a model's device has autocast."""

from collections.abc import Iterator
from typing import Any

import torch

from hotlap.nested import leaves, tensors
from hotlap.trace.facts import device_of

_NODES = 60
"""Nodes of a graph that are looked at, from the loss on."""


def has_graph(output: Any) -> bool:
    """Return whether a backward may follow what a module returned."""
    if isinstance(output, torch.Tensor):
        return output.requires_grad
    if isinstance(output, dict):
        return any(map(has_graph, output.values()))
    return isinstance(output, list | tuple) and any(map(has_graph, output))


def nodes_of(root: Any, until: tuple[str, ...] = ()) -> Iterator[Any]:
    """Give the nodes of a graph that are nearest to its root.

    Args:
        root: the first one.
        until: how the names of those begin that nothing behind is given of, nor they themselves.
    """
    queue, seen = [root], {root}
    while queue and len(seen) <= _NODES:
        node = queue.pop(0)
        if until and type(node).__name__.startswith(until):
            continue
        yield node
        for each, _ in node.next_functions:
            if each is not None and each not in seen:
                seen.add(each)
                queue.append(each)


def asks_for_gradient(inputs: Any) -> bool:
    """Return whether a model is given a tensor that requires a gradient."""
    return any(map(_requires_gradient, leaves(inputs)))


def _requires_gradient(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.requires_grad
    # Libraries give batches, of graphs for one, as objects of their own.
    held = {} if isinstance(leaf, torch.nn.Module) else getattr(leaf, "__dict__", {})
    return any(tensor.requires_grad for tensor in tensors(held))


def autocast_kind(root: Any) -> str:
    """Return the kind of a model's device, if there is autocast on it; raise if there is none."""
    kind = device_of([root])
    # It raises here, and not in each forward.
    torch.is_autocast_enabled(kind)
    return kind
