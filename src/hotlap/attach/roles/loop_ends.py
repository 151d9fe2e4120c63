"""`LoopEnds`: which optimizer's step ends an iteration of a loop with several optimizers."""

import weakref
from typing import Any

_REPLACED_AFTER = 20
"""Steps of other optimizers without one of the first: the script trains with another one now."""


class LoopEnds:
    """Tells which of a script's optimizer steps ends an iteration of its loop."""

    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None
        self._others = 0

    def ends(self, optimizer: Any) -> bool:
        """True at a step of the first optimizer: with several, a step is one of each of them.

        A script that makes a new optimizer now and then goes on with the new one.
        """
        first = None if self._first is None else self._first()
        if optimizer is not first:
            self._others += 1
            if first is not None and self._others <= _REPLACED_AFTER:
                return False
            self._first = weakref.ref(optimizer)
        self._others = 0
        return True
