"""Nested batches: map, flatten and rebuild tensors in lists, tuples, named tuples and mappings.

Two operations, because they promise different things. `map_tensors` changes the tensors of any
batch, and its containers keep their types. `flatten_into` and `rebuild` make an equal batch again;
containers that may hold more than their parts are refused.
"""

import copy
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

NOT_IN_JSON = "a batch holds objects that are not tensors, or keys that are no text or numbers"
"""Why there is no JSON of a batch's structure, see `flatten_to_json`."""
_PLAIN = (type(None), bool, int, float, str)


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a nested batch with `change` of each of its tensors, in their order.

    Lists, tuples, named tuples and mappings of any class are gone through; another container of
    the same class is made wherever something in it has changed (of a read-only mapping, a dict).
    Anything else stays as it is, dataclasses too, and the `batch_sizes` of a `PackedSequence`:
    torch reads them on the CPU, wherever the data are.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return with_items(value, {key: map_tensors(item, change) for key, item in value.items()})
    if isinstance(value, PackedSequence):
        data, sizes, *order = value
        return _with_parts(value, [change(data), sizes, *(map_tensors(o, change) for o in order)])
    if isinstance(value, list | tuple):
        return _with_parts(value, [map_tensors(item, change) for item in value])
    return value


def copy_of(value: Any) -> Any:
    """Return a nested batch with copies of its tensors, for someone who may write into it.

    One of a class that cannot be made again is returned as it is.
    """
    copied = map_tensors(value, torch.clone)
    return copied if type(copied) is type(value) else value


def leaves(value: Any) -> Iterator[Any]:
    """Give what a nested batch holds that is no container: tensors, and anything else."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for item in value:
        yield from leaves(item)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Give the tensors of a nested batch, in their order."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def given_tensors(value: Any) -> list[torch.Tensor] | None:
    """Return the tensors of what a module is called with, detached, in their order.

    Returns:
        None if it holds anything else but constants: of that nothing is known.
    """
    found = []
    for leaf in leaves(value):
        if type(leaf) in (torch.Tensor, torch.nn.Parameter):
            found.append(leaf.detach())
        elif not isinstance(leaf, _PLAIN):
            return None
    return found


def with_items(value: Any, items: dict[Any, Any]) -> Any:
    """Return a mapping like `value`, of its class where that can be made, with other values."""
    if type(value) is dict:
        return items
    if all(items[key] is old for key, old in value.items()):
        return value
    if not isinstance(value, MutableMapping):
        # What makes it, nobody knows: a read-only view, say.
        return items
    new = copy.copy(value)
    for key, item in items.items():
        new[key] = item
    return new


def _with_parts(value: Any, parts: list[Any]) -> Any:
    if type(value) is list:
        return parts
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    if isinstance(value, list):
        new = copy.copy(value)
        new[:] = parts
        return new
    if type(value) is tuple:
        return tuple(parts)
    try:
        new = tuple.__new__(type(value), parts)
    except TypeError:
        # A named result of torch's, which only its own constructor may make.
        return type(value)(parts)
    if hasattr(value, "__dict__"):
        vars(new).update(vars(value))
    return new


@dataclass(frozen=True)
class _Encoding:
    """A class derived from `UserDict`, as tokenizers give it, and what it holds beside its data."""

    cls: type
    attributes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, value: UserDict[Any, Any]) -> "_Encoding | None":
        """Return it, None if an object holds anything that is no constant, or has slots."""
        if any(vars(each).get("__slots__") for each in type(value).__mro__):
            return None
        rest = {name: held for name, held in vars(value).items() if name != "data"}
        if type(value.data) is not dict or not all(type(held) in _PLAIN for held in rest.values()):
            return None
        return cls(type(value), tuple(rest.items()))

    def construct(self, data: dict[Any, Any]) -> Any:
        new = object.__new__(self.cls)
        vars(new).update(self.attributes, data=data)
        return new


def flatten_into(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Append the tensors of a nested batch to `leaves`, and return its structure.

    Returns:
        What `rebuild` takes; two structures are equal if their batches are made alike. None if the
        batch holds something else than plain tensors that need no gradient, or if it may hold more
        than its parts show.
    """
    if type(value) is torch.Tensor and not value.requires_grad:
        leaves.append(value)
        return "tensor"
    # A subclass may be made in ways that its contents do not show.
    if type(value) is dict:
        return _parts_of(dict, value, leaves)
    if type(value) in (list, tuple) or _is_named(value):
        items = tuple(flatten_into(item, leaves) for item in value)
        return None if None in items else (type(value), items)
    if isinstance(value, UserDict):
        kind = _Encoding.of(value)
        return None if kind is None else _parts_of(kind, value.data, leaves)
    return None


def _parts_of(kind: Any, data: dict[Any, Any], leaves: list[torch.Tensor]) -> Any:
    parts = {key: flatten_into(item, leaves) for key, item in data.items()}
    return None if None in parts.values() else (kind, tuple(parts.items()))


def _is_named(value: Any) -> bool:
    """True for a named tuple that holds nothing beside its fields."""
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")
    return is_named and not getattr(value, "__dict__", None)


def has_packed(structure: Any) -> bool:
    """True if a batch of that structure holds a `PackedSequence`; the host reads its sizes."""
    if structure == "tensor":
        return False
    kind, parts = structure
    if kind is dict or isinstance(kind, _Encoding):
        return any(has_packed(part) for _, part in parts)
    return kind is PackedSequence or any(map(has_packed, parts))


def is_plain_list(structure: Any) -> bool:
    """True if a batch of that structure is a list of tensors."""
    return type(structure) is tuple and structure[0] is list and set(structure[1]) == {"tensor"}


def rebuild(structure: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """Make a nested batch of that structure from its tensors."""
    if structure == "tensor":
        return next(leaves)
    kind, parts = structure
    if kind is list or kind is tuple:
        return kind([next(leaves) if part == "tensor" else rebuild(part, leaves) for part in parts])
    if kind is dict:
        return {key: rebuild(part, leaves) for key, part in parts}
    if isinstance(kind, _Encoding):
        return kind.construct({key: rebuild(part, leaves) for key, part in parts})
    # Its own `__new__` has made these parts of what it was given, and would do so again.
    return tuple.__new__(kind, [rebuild(part, leaves) for part in parts])


def flatten_to_json(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Do what `flatten_into` does, with the structure as plain JSON, see `to_json`.

    Returns:
        What `from_json` reads; None also if a key is neither text nor a number.
    """
    structure = flatten_into(value, leaves)
    has_json = structure is not None and _has_plain_keys(structure)
    return to_json(structure) if has_json else None


def _has_plain_keys(structure: Any) -> bool:
    if structure == "tensor":
        return True
    kind, parts = structure
    if kind is dict or isinstance(kind, _Encoding):
        return all(type(key) in _PLAIN and _has_plain_keys(part) for key, part in parts)
    return all(map(_has_plain_keys, parts))


def to_json(structure: Any) -> Any:
    """Return a structure as plain JSON, for another process that has the same classes.

    Keys of its mappings are text or numbers.
    """
    if structure == "tensor":
        return structure
    kind, parts = structure
    if kind is dict:
        return ["dict", [[key, to_json(part)] for key, part in parts]]
    if isinstance(kind, _Encoding):
        rest = [_name(kind.cls), list(kind.attributes)]
        return ["encoding", [[key, to_json(part)] for key, part in parts], rest]
    inside = [to_json(part) for part in parts]
    if kind in (list, tuple):
        return [kind.__name__, inside]
    return ["named", inside, _name(kind)]


def from_json(given: Any) -> Any:
    """Return the structure that `to_json` described.

    Raises:
        LookupError: a class is not there under its name, in a function for example.
    """
    if given == "tensor":
        return given
    kind, parts, *rest = given
    if kind in ("dict", "encoding"):
        pairs = tuple((key, from_json(part)) for key, part in parts)
        if kind == "dict":
            return (dict, pairs)
        name, attributes = rest[0]
        return (_Encoding(_class(name), tuple(map(tuple, attributes))), pairs)
    inside = tuple(map(from_json, parts))
    return ({"list": list, "tuple": tuple}[kind] if kind != "named" else _class(*rest), inside)


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise LookupError(f"the class {path} of a batch was not found in the module {module}")
    return found
