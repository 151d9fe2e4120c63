"""Events of a training loop in order, for rules about mistakes."""

from types import FrameType

from hotlap.trace import frames
from hotlap.trace.schema import Event

_MOST = 200_000
"""Events that are kept: the same few come in every step, and a watch is not to use up memory."""


class Events:
    """Notes what happens, with the step in which it does and the user's line that asked for it."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, str, str, int]] = []

    def note(self, step: int, kind: str, frame: FrameType | None) -> None:
        """Note an event.

        Args:
            step: steps done before it.
            kind: one of `event_kinds`.
            frame: where it happens; its innermost line in a user's file is kept.
        """
        if len(self._noted) < _MOST:
            name, line = frames.line(frame) or ("", 0)
            self._noted.append((step, kind, name, line))

    def as_tuple(self) -> tuple[Event, ...]:
        """Return what was noted, in order."""
        names = {
            name: frames.shorten_path(name) for name in {row[2] for row in self._noted} if name
        }
        return tuple(
            Event(step, kind, f"{names[name]}:{line}" if name else "")
            for step, kind, name, line in self._noted
        )
