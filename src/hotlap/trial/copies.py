"""Finds copies of a model among a process's objects: modules, parts, lists and dicts of tensors."""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
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
    """Return a module and the part of a root with its class and shapes, or else, for a wrapper of
    several such parts, these of each of its own."""
    shapes = [parameter.shape for parameter in module.parameters()]
    if not shapes:
        return []
    alike = [
        part
        for part in root.modules()
        if type(part) is type(module) and [each.shape for each in part.parameters()] == shapes
    ]
    if not alike:
        return [pair for child in module.children() for pair in parts_like(root, child)]
    # A network has many layers that are alike; a copy is near the one that it is a copy of.
    nearest = min(alike, key=lambda part: _distance(part, module)) if alike[1:] else alike[0]
    return [(module, nearest)]


def _distance(one: Any, other: Any) -> float:
    found = 0.0
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        values = local_of(a.detach()).float()
        found += float((values - local_of(b.detach()).to(values)).square().sum())
    return found


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
    off = size = 0.0
    for tensor, weight in zip(tensors, weights.values(), strict=True):
        values = local_of(weight.detach()).float()
        off += float((local_of(tensor.detach()).to(values) - values).square().sum())
        size += float(values.square().sum())
    return off <= _NEAR**2 * size


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
