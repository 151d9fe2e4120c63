"""Finds copies of a model among a process's objects: modules, parts, lists and dicts of tensors."""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from hotlap.distributed.shares import local_of

_NEAR = 0.5
"""How far tensors may be from the weights to be a copy of them, as a share of their length; what
has the same shapes otherwise, gradients and moments, is farther."""

_PREFIXES = "", "module."
"""Of a parameter's name, in a dict; the second is DistributedDataParallel's."""


def modules_like(root: Any, trained: set[int], objects: Sequence[Any]) -> list[Any]:
    """Return modules of a root's class and shapes whose parameters are their own.

    Args:
        root: the module that is trained.
        trained: identities of what optimizers update.
        objects: all that there are.
    """
    kind = type(root)
    own = {id(parameter) for parameter in root.parameters()} | trained
    shapes = [parameter.shape for parameter in root.parameters()]
    found = []
    # Not isinstance, which asks objects that answer with code of their own.
    for candidate in [each for each in objects if type(each) is kind and each is not root]:
        try:
            theirs = list(candidate.parameters())
            fits = [p.shape for p in theirs] == shapes and not any(p.is_meta for p in theirs)
        except Exception:
            # It is still being made, or lazy: no copy of a module that is trained.
            continue
        if fits and not any(id(p) in own for p in theirs):
            found.append(candidate)
    return found


def parts_like(root: Any, module: Any) -> list[tuple[Any, Any]]:
    """Return a module with the part of a root that is like it, or else each of its children with
    one, as of a wrapper that holds copies of several parts.

    Parts are like a module if they have its class and shapes; to its children they must also be
    near, as layers of many networks are alike. Either all children have one, or none counts.
    """
    alike = _alike(root, module)
    if alike:
        return [] if alike[0] is root else [(module, alike[0])]
    children = [child for child in module.children() if next(child.parameters(), None) is not None]
    if sum(1 for child in children for _ in child.parameters()) != len([*module.parameters()]):
        return []
    pairs = [(child, _nearest(root, child)) for child in children]
    return [] if any(part is None or part is root for _, part in pairs) else pairs


def _alike(root: Any, module: Any) -> list[Any]:
    shapes = [parameter.shape for parameter in module.parameters()]
    return [
        part
        for part in root.modules()
        if type(part) is type(module)
        and shapes
        and [each.shape for each in part.parameters()] == shapes
    ]


def _nearest(root: Any, module: Any) -> Any:
    """Return the part of a root that a module is most likely a copy of, None if there is none."""
    ours = [*module.parameters()]
    off = {part: _distance(ours, [*part.parameters()]) for part in _alike(root, module)}
    nearest = min(off, key=lambda part: off[part], default=None)
    return nearest if nearest is not None and off[nearest] <= _NEAR else None


def _distance(tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> float:
    """Return how far tensors are from weights, as a share of the length of these."""
    off = size = 0.0
    for tensor, weight in zip(tensors, weights, strict=True):
        values = local_of(weight.detach()).float()
        off += float((local_of(tensor.detach()).to(values) - values).square().sum())
        size += float(values.square().sum())
    if not size:
        return inf if off else 0.0
    return (off / size) ** 0.5


def place_of(tensor: torch.Tensor) -> int:
    """Return where in memory a tensor's numbers are."""
    return local_of(tensor.detach()).untyped_storage().data_ptr()


def containers_of(
    root: Any, trained: set[int], objects: Sequence[Any]
) -> list[tuple[Any, list[Any], list[str]]]:
    """Return lists and dicts that hold a copy of the weights, where in them, and whose.

    Args:
        root: the module whose weights they are.
        trained: where in memory is what optimizers update.
        objects: all that there are.
    """
    named = dict(root.named_parameters())
    learned = {name: weight for name, weight in named.items() if weight.requires_grad}
    if not learned:
        return []
    firsts = {next(iter(named)), next(iter(learned))}
    first = [f"{prefix}{name}" for prefix in _PREFIXES for name in firsts]
    own = {place_of(weight) for weight in named.values()} | trained
    # Nearly all objects of a process are left out here, so it must be cheap.
    dicts = [
        each
        for each in objects
        if type(each) is dict or type(each) is OrderedDict or type(each) is defaultdict
    ]
    candidates: dict[int, Any] = {
        id(each): each for name in first for each in dicts if name in each
    }
    lists = [each for each in objects if type(each) is list]
    # Not isinstance, see above. Another thread may empty a list meanwhile.
    candidates |= {
        id(each): each
        for each in lists
        for its_first in each[:1]
        if issubclass(type(its_first), torch.Tensor)
    }
    found = []
    for candidate in candidates.values():
        for weights in (named, learned):
            try:
                places = _places(candidate, weights)
                if places and _is_copy([candidate[place] for place in places], weights, own):
                    found.append((candidate, places, [*weights]))
                    break
            except Exception:
                # Another thread changes it, or its tensors cannot be read: it is not followed.
                break
    return found


def _is_copy(
    tensors: Sequence[torch.Tensor], weights: dict[str, torch.Tensor], own: set[int]
) -> bool:
    """True if tensors with memory of their own, and no module's, are near the weights."""
    if all(isinstance(each, torch.nn.Parameter) for each in tensors):
        return False
    if any(place_of(each) in own for each in tensors):
        return False
    return _distance(tensors, [*weights.values()]) <= _NEAR


def _places(container: Any, weights: dict[str, torch.Tensor]) -> list[Any] | None:
    """Return the keys or positions of tensors with the shapes of the weights, None without them."""
    shapes = [weight.shape for weight in weights.values()]
    if type(container) is list:
        fits = len(container) == len(shapes) and all(
            isinstance(each, torch.Tensor) and each.shape == shape
            for each, shape in zip(container, shapes, strict=True)
        )
        return [*range(len(shapes))] if fits else None
    for prefix in _PREFIXES:
        keys = [f"{prefix}{name}" for name in weights]
        values = [container.get(key) for key in keys]
        if all(
            isinstance(each, torch.Tensor) and each.shape == shape
            for each, shape in zip(values, shapes, strict=True)
        ):
            return keys
    return None
