"""`IdentityTable`: values by object identity, dropped when the object dies."""

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class IdentityTable(Generic[Value]):
    """A table whose keys need neither a hash nor equality, and are not kept alive.

    A key that cannot be referred to weakly, a list for one, is kept: its id must not be given to
    another object. It goes with the last of the objects for which it is kept, see `keep_for`; for
    nobody, it stays.

    Args:
        on_death: called with a key's value when the key has died.
    """

    def __init__(self, on_death: Callable[[Value], None] | None = None) -> None:
        self._entries: dict[int, tuple[Callable[[], Any], Value]] = {}
        self.ids = self._entries.keys()
        """Identities of the keys, as they are at any time."""
        self._on_death = on_death
        self._users: dict[int, dict[int, weakref.ref[Any]]] = {}
        """By the id of a key that is kept, and by their own ids: for whom it is kept."""

    def put(self, key: Any, value: Value) -> None:
        """Set the key's value."""
        number = id(key)
        try:
            refer: Callable[[], Any] = weakref.ref(key, lambda _: self._drop(number))
        except TypeError:
            refer = lambda: key  # noqa: E731
            self._users.setdefault(number, {})
        self._entries[number] = (refer, value)

    def keep_for(self, key: Any, user: Any) -> None:
        """Let a key that cannot be referred to weakly live until `user`, and all others, have died.

        Args:
            key: one that has a value; nothing is done for one that can be referred to weakly.
            user: what uses it; nothing is done for one that cannot be referred to weakly.
        """
        kept, number = id(key), id(user)
        users = self._users.get(kept)
        if users is None or number in users:
            return
        with contextlib.suppress(TypeError):
            users[number] = weakref.ref(user, lambda _: self._leave(kept, number))

    def _leave(self, number: int, user: int) -> None:
        users = self._users.get(number, {})
        users.pop(user, None)
        if not users and number in self._users:
            self._drop(number)

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
        self._users.pop(number, None)
        if self._on_death is not None:
            self._on_death(value)
