"""`SafeCalls`: a watcher that fails is no matter of the script, and looks at nothing any more."""

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("hotlap")


class SafeCalls:
    """Calls watchers by their names until they fail, and knows why they have."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}

    def call(self, watcher: str, work: Callable[..., Any], *given: Any) -> Any:
        """Return what a watcher does; None if that fails, or if it has failed before."""
        if watcher in self._failed:
            return None
        try:
            return work(*given)
        except Exception as error:
            words = f"{type(error).__name__}: {error}".partition("\n")[0]
            self._failed[watcher] = words
            log.warning("nothing is said of %s: to look at them failed", watcher, exc_info=True)
            return None

    def facts(self, watcher: str, facts: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return what a watcher has seen, nothing if it has failed."""
        return self.call(watcher, facts) or ()

    def problems(self) -> tuple[str, ...]:
        """Return a sentence for each watcher that has failed."""
        return tuple(
            f"nothing is said of {watcher}: to look at them failed ({words})"
            for watcher, words in self._failed.items()
        )
