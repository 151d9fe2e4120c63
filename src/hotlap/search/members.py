"""Parameters that are an `Enum`: their values as a recipe's command line gives them. No torch."""

from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin


def enum_of(kind: Any) -> type[Enum] | None:
    """Return the Enum of a parameter of that type, None if it is of another kind.

    Members of a Flag are none: a command line gives each of their bits by an option of its own.
    """
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        kind = parts[0] if len(parts) == 1 else None
    is_enum = isinstance(kind, type) and issubclass(kind, Enum) and not issubclass(kind, Flag)
    return kind if is_enum else None


def members_of(enum: type[Enum]) -> dict[str, Enum]:
    """Return the words of a command line -> the members that they give: their names, not values."""
    found: dict[str, Enum] = {}
    for name, member in enum.__members__.items():
        found.setdefault(_word(name), member)
    return found


def plain(value: Any, enum: type[Enum] | None) -> Any:
    """Return a value as a command line gives it.

    Args:
        value: a member, or anything else.
        enum: of the parameter; the members of another Enum are given by their values.
    """
    if isinstance(value, Enum):
        return _word(value.name) if enum is not None and isinstance(value, enum) else value.value
    if enum is not None and isinstance(value, str) and _word(value) in members_of(enum):
        return _word(value)
    return value


def as_recipe_has_it(value: Any, enum: type[Enum] | None) -> Any:
    """Return the member that a word gives, of a parameter that is an Enum."""
    return value if enum is None else members_of(enum).get(value, value)


def _word(name: str) -> str:
    """Return a name as the parser of recipes compares it with the names of members."""
    from cyclopts import default_name_transform

    return default_name_transform(name)
