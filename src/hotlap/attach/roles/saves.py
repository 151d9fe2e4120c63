"""`saved_row`: what tells whether an object that is saved holds the weights of the model."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from hotlap.attach.roles.networks import Networks
from hotlap.attach.seams import known_optimizers
from hotlap.trial import digest
from hotlap.trial.protocol import UNREAD

_DEEPEST = 20
_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Keys of parameter groups that say how an update is computed, not which."""


def saved_row(value: Any, networks: Networks, updates: int) -> list[Any]:
    """Return updates so far, how many trained parameters are there bit by bit, digests of all
    tensors, and of names and numbers as well.

    What cannot be read, as of a mapping that computes its values, is no reason to stop a save.

    Args:
        value: what is saved.
        networks: that the script has called.
        updates: of all optimizers so far.
    """
    try:
        return _row(value, networks, updates)
    except Exception as error:
        return [updates, 0, "", f"{UNREAD}{type(error).__name__}"]


def _row(value: Any, networks: Networks, updates: int) -> list[Any]:
    opened = _opened(value, _DEEPEST)
    digests = digest.of_tensors(digest.tensors_in(opened))
    trained = {id(p) for each in known_optimizers() for g in each.param_groups for p in g["params"]}
    weights = [tensor for _, tensor in networks.states() if id(tensor) in trained]
    held = sum(each in digests for each in digest.of_tensors(weights))
    return [updates, held, digest.of_nested(digests), digest.of_readable(opened)]


def _opened(value: Any, depth: int) -> Any:
    """Return what is saved with modules as their tensors, and without what says how it is computed.

    How an object of a class of its own would be pickled is not looked at.
    """
    if isinstance(value, nn.Module):
        named = [*value.named_parameters(), *value.named_buffers()]
        return [type(value).__qualname__, dict(named)]
    if depth and type(value) in (list, tuple):
        return [_opened(item, depth - 1) for item in value]
    if depth and isinstance(value, Mapping):
        keys = [key for key in value if key not in _IMPLEMENTATION]
        try:
            return {key: _opened(value[key], depth - 1) for key in keys}
        except Exception:
            return UnreadMapping()
    return value


class UnreadMapping:
    """In place of a mapping that raises as it is read: no digest reads what has slots."""

    __slots__ = ()
