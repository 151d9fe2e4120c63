"""`ReceivedParts`: an `ItemParts` whose first parts of samples worker processes have computed."""

from collections.abc import Mapping
from typing import Any

from hotlap.feed.memory.item_parts import ItemParts

_ENOUGH = 0.9
"""Of what an epoch asks for: what is missing is read when it is asked for."""


class DividedParts(ItemParts):
    """First parts of which it is known before where they end."""

    in_workers = True

    def look(self, dataset: Any) -> None:
        """Look at the data set before an epoch; what is held of another one is thrown away."""
        self._is_due_to_look = True
        self._try(self._look, dataset)

    def divide_after(self, statements: int) -> None:
        """Divide the code after so many statements, as was found in samples."""
        if self.refused is None:
            self._after = statements
            self._try(self._divide)
            # Samples are made in both ways in a child of the process that trains, before the first
            # one is served.
            self._is_verified = True

    def refuse(self, reason: str, *, too_late: bool = False) -> None:
        """Stop serving, for `reason`; `too_late` if what was served may be wrong."""
        self._refuse(reason, too_late=too_late)


class ReceivedParts(DividedParts):
    """The first parts of the samples of a data set that worker processes read, see `ItemParts`.

    Workers see the data set as it was when they were started: this process must not see a later
    one.

    Args:
        max_bytes: hold no more than this together with all other data sets.
    """

    @property
    def is_empty(self) -> bool:
        return not self._held

    def holds(self, keys: set[Any]) -> bool:
        """True if all of these are held, or nearly all."""
        return len(keys & self._held.keys()) >= _ENOUGH * len(keys)

    def receive(self, statements: int | None, found: Mapping[Any, tuple[Any, ...]]) -> None:
        """Keep what a worker has computed.

        Args:
            statements: that stand before the first draw, as far as the worker has seen.
            found: by `key_of` the index.
        """
        if self.refused is None and statements != self.statements:
            self.refuse(f"{self._name} draws random numbers at changing places")
        if self.refused is None and not self._is_full:
            for key, values in found.items():
                self._hold_copy(key, values)
            self.computed += len(found)

    def _has_changed(self, what: str, *, is_epoch: bool) -> None:
        if is_epoch:
            super()._has_changed(what, is_epoch=True)
            return
        self.refuse(
            f"{what} changed during an epoch, which worker processes do not see before the next",
            too_late=True,
        )
