"""A cheap check before every batch: has anything changed that reading a sample depends on?"""

import marshal
import operator
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from hotlap.feed.purity.contents import members_of

_MOST_WATCHED, _MOST_WATCHED_BYTES = 32, 4096
"""Small containers that are compared before every batch, and how large one may be."""


def _equal(container: Any, copy: Any) -> bool:
    try:
        return bool(container == copy)
    except Exception:
        # An array has taken the place of a number: it has no truth value.
        return False


class ChangeWatch:
    """Names, tensors and small containers, each as it was when it was added."""

    def __init__(self) -> None:
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._paths: list[str] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []
        # An attribute of the class may be hidden by one that an object gets later.
        self._holders: list[tuple[Mapping[str, Any], int]] = []
        self._contents: list[tuple[str, Any, Any]] = []
        """(path, small container of plain values, a copy of it)"""
        self._members: list[tuple[str, Any, list[Any]]] = []
        """(path, small container of other objects, these)"""
        self._slots: list[tuple[str, Any, str, Any]] = []

    def find_change(self) -> str | None:
        """Return the path of something that was rebound, or written to, since; None if nothing.

        This is the quick look: of contents those of tensors and of small containers are seen.
        """
        found = self.find_rebinding()
        if found is None and (self._contents or self._members or self._slots):
            return self._find_rewritten()
        return found

    def find_rebinding(self) -> str | None:
        """Like `changed`, but leave containers out, in which a data set may keep what it read."""
        for number, (holder, name, value) in enumerate(self._names):
            if holder.get(name) is not value:
                return self._paths[number]
        for holder, size in self._holders:
            if len(holder) != size:
                return "the set of attributes of an object"
        for tensor, version in self._tensors:
            if tensor._version != version:
                return "a tensor"
        return None

    def _find_rewritten(self) -> str | None:
        for path, container, copy in self._contents:
            if not _equal(container, copy):
                return path
        for path, container, members in self._members:
            now = members_of(container)
            if len(now) != len(members) or not all(map(operator.is_, now, members)):
                return path
        for path, holder, name, value in self._slots:
            if getattr(holder, name, None) is not value:
                return path
        return None

    def accept(self) -> None:
        """Take small containers as they are now: reading has filled them."""
        contents, self._contents = self._contents, []
        for path, container, _ in contents:
            self.add_contents(path, container)
        self._members = [(path, each, members_of(each)) for path, each, _ in self._members]
        self._slots = [
            (path, holder, name, getattr(holder, name, None))
            for path, holder, name, _ in self._slots
        ]

    def add_name(self, path: str, holder: Mapping[str, Any], name: str, value: Any) -> None:
        """Watch what a name stands for: an attribute, or a global."""
        self._names.append((holder, name, value))
        self._paths.append(path)

    def add_tensor(self, tensor: torch.Tensor) -> None:
        # One that was made in inference mode counts no versions: the next epoch looks at its sum.
        if not tensor.is_inference():
            self._tensors.append((tensor, tensor._version))

    def add_holder(self, attributes: Mapping[str, Any]) -> None:
        self._holders.append((attributes, len(attributes)))

    def add_contents(self, path: str, value: Any) -> None:
        """Let the quick look see a small container's contents, as configurations are."""
        if isinstance(value, tuple | frozenset) or len(self._contents) >= _MOST_WATCHED:
            return
        if sys.getsizeof(value) > _MOST_WATCHED_BYTES:
            return
        try:
            written = marshal.dumps(list(value) if isinstance(value, deque) else value, 2)
        except ValueError:
            # Paths, which never change, among them.
            return
        copy = marshal.loads(written) if len(written) <= _MOST_WATCHED_BYTES else None
        copy = deque(copy) if isinstance(value, deque) and copy is not None else copy
        # What is not a number equals nothing, itself neither.
        if type(copy) is type(value) and copy == value:
            self._contents.append((path, value, copy))

    def add_members(self, path: str, container: Any) -> None:
        """Watch which objects a container holds, if it is small."""
        if len(container) <= _MOST_WATCHED and len(self._members) < _MOST_WATCHED:
            self._members.append((path, container, members_of(container)))

    def add_slot(self, path: str, holder: Any, name: str, value: Any) -> None:
        """Watch what a slot of an object holds."""
        if len(self._slots) < _MOST_WATCHED:
            self._slots.append((path, holder, name, value))
