"""Kinds of dataset: map-style or iterable, how long, and which are refused."""

import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from hotlap.errors import UsageError


def is_stream(data: Any) -> bool:
    """True for an iterable data set, which is read from its start on."""
    # Torch's own class has a `__getitem__`, which only raises.
    if _is_torchs("IterableDataset", data):
        return True
    return hasattr(data, "__iter__") and not hasattr(data, "__getitem__")


def _is_torchs(name: str, data: Any) -> bool:
    # Who has such an object has imported torch.
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(data, getattr(torch_data, name))


def samples_in(data: Any) -> int | None:
    """Return the samples of a data set; None for a stream that does not say."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def check_data(name: str, data: Any) -> None:
    """Refuse what is no data set, or one that the engine cannot read as often as it must.

    Raises:
        UsageError: see above; `name` is the task's field.
    """
    if isinstance(data, Mapping):
        keys = ", ".join(map(repr, data)) or "none"
        raise UsageError(
            f"the task's {name} is a {type(data).__name__} with the keys {keys}, not one dataset. "
            f"Pass the dataset under one of the keys, as in {name}=datasets[KEY]."
        )
    if _is_torchs("DataLoader", data):
        raise UsageError(
            f"the task's {name} is a {type(data).__name__}. Expected: the dataset that it reads. "
            f"Pass {name}=loader.dataset, and set batch_size, shuffle, collate and drop_last in "
            "the task, and workers in the plan."
        )
    is_map = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not is_map and not is_stream(data):
        raise UsageError(
            f"the task's {name} is a {type(data).__name__}. Expected: a dataset with `__len__` and "
            "`__getitem__`, or with `__iter__`."
        )
    # A class of the user's own may begin anew in its `__iter__`; what Python has does not.
    if hasattr(data, "__next__") and not isinstance(type(data).__iter__, FunctionType):
        raise UsageError(
            f"the task's {name} is a {type(data).__name__}, an iterator, which can be read only "
            "once. Pass a list of its samples, or an object whose `__iter__` creates a new "
            "iterator each time."
        )
    if hasattr(type(data), "__len__"):
        _check_length(name, data)
    if samples_in(data) == 0:
        raise UsageError(
            f"the task's {name} is empty. Expected: one sample or more. Check what it reads, such "
            "as a path or a filter."
        )


def _check_length(name: str, data: Any) -> None:
    """Refuse a `__len__` that gives no number of samples; a stream need not know its own."""
    try:
        # Not by `len`, whose own TypeError for 64.0 is the one of a stream without a length.
        length = type(data).__len__(data)
    except (TypeError, NotImplementedError) as error:
        if is_stream(data):
            return
        raise UsageError(
            f"`__len__` of the task's {name} ({type(data).__name__}) raised "
            f"{type(error).__name__}: {error}. Return the number of samples from `__len__`, an "
            "integer of 0 or more."
        ) from error
    if not hasattr(type(length), "__index__") or length < 0:
        raise UsageError(
            f"`__len__` of the task's {name} ({type(data).__name__}) returned {length!r}. Return "
            "the number of samples from it, an integer of 0 or more."
        )
