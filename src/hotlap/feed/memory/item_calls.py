"""Indices through `Subset`, keys of indices, and another `__getitem__` for a class for a while."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import Subset

Item = Callable[[Any, Any], Any]
"""`item(dataset, index) -> sample`"""
_ABSENT: Any = object()


def innermost(dataset: Any) -> Any:
    """Return the data set of which others are a part."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def inner_indices(dataset: Any, indices: Any) -> dict[Any, Any]:
    """Return key -> index of samples in the innermost data set; what has no key is left out."""
    indices = list(indices)
    while type(dataset) is Subset:
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    found = {key_of(index): index for index in indices}
    found.pop(None, None)
    return found


def key_of(index: Any) -> Any:
    """Return what names an index, and its type: a sample may hang on that, too. None if nothing."""
    if type(index) is int:
        return index
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(index, numpy.integer):
        return type(index), int(index)
    return None


def index_of(key: Any) -> Any:
    """Return the index that a key names."""
    return key if type(key) is int else key[0](key[1])


@contextmanager
def items_made_by(dataset: Any, make: Callable[[Any, Any, Item], Any]) -> Iterator[None]:
    """Let a data set's samples be made in another way for a while.

    Args:
        dataset: of its class, no other object's samples are.
        make: `make(dataset, index, plain)`, where `plain` is the class's own `__getitem__`.
    """
    kind = type(dataset)
    plain, own = kind.__getitem__, vars(kind).get("__getitem__", _ABSENT)

    def __getitem__(itself: Any, index: Any) -> Any:
        return make(itself, index, plain) if itself is dataset else plain(itself, index)

    kind.__getitem__ = __getitem__
    try:
        yield
    finally:
        if own is _ABSENT:
            del kind.__getitem__
        else:
            kind.__getitem__ = own
