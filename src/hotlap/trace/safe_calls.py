"""`SafeCalls`: a watcher that fails is no matter of the script, and looks at nothing any more."""

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("hotlap")


class SafeCalls:
    """Calls watchers by their names until they fail, and knows why they have."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        """Watchers that are called no more, and why."""

    def call(self, watcher: str, work: Callable[..., Any], *given: Any) -> Any:
        """Return what a watcher does; None if that fails, or if it has failed before."""
        if watcher in self.failed:
            return None
        try:
            return work(*given)
        except Exception as error:
            self.note_failure(watcher, error)
            return None

    def note_failure(self, watcher: str, error: Exception) -> None:
        """Note that a watcher has failed; to be called while the error is handled."""
        self.failed[watcher] = f"{type(error).__name__}: {error}".partition("\n")[0]
        log.warning("nothing is said of %s: to look at them failed", watcher, exc_info=True)

    def facts(self, watcher: str, facts: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return what a watcher has seen, nothing if it has failed."""
        return self.call(watcher, facts) or ()

    def problems(self) -> tuple[str, ...]:
        """Return a sentence for each watcher that has failed."""
        return tuple(
            f"nothing is said of {watcher}: to look at them failed ({words})"
            for watcher, words in self.failed.items()
        )
