"""`IdentityTable`: values by object identity, dropped when the object dies."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class IdentityTable(Generic[Value]):
    """A table whose keys need neither a hash nor equality, and are not kept alive.

    A key that cannot be referred to weakly, a list for one, is kept: its id must not be given to
    another object.

    Args:
        on_death: called with a key's value when the key has died.
    """

    def __init__(self, on_death: Callable[[Value], None] | None = None) -> None:
        self._entries: dict[int, tuple[Callable[[], Any], Value]] = {}
        self._on_death = on_death

    def put(self, key: Any, value: Value) -> None:
        """Set the key's value."""
        number = id(key)
        try:
            refer: Callable[[], Any] = weakref.ref(key, lambda _: self._drop(number))
        except TypeError:
            refer = lambda: key  # noqa: E731
        self._entries[number] = (refer, value)

    def get(self, key: Any) -> Value | None:
        """Return the key's value, None if it has none."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def __contains__(self, key: Any) -> bool:
        entry = self._entries.get(id(key))
        return entry is not None and entry[0]() is key

    def _drop(self, number: int, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter shutdown modules are emptied one after another: what `on_death` calls may
        # be None by now, and so may `sys`. The memory is given back anyway.
        if is_finalizing():
            return
        _, value = self._entries.pop(number)
        if self._on_death is not None:
            self._on_death(value)
