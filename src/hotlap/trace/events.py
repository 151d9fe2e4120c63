"""`Events`: notes events of a training loop in order, with their step and the user's line."""

import sys
from collections.abc import Callable
from types import FrameType

from hotlap.trace import frames
from hotlap.trace.schema import Event
from hotlap.usercode import is_users

_MOST = 200_000
"""Events that are kept: the same few come in every step, and a watch is not to use up memory."""
_NOWHERE: frames.Place = (None, 0)


class Events:
    """Notes what happens, with the step in which it does and the user's line that asked for it.

    What is noted in every step is noted as it is found, and its line is looked up at the end. Who
    notes something in every step, and finds one of `users` where it looks, need not call `note`:
    each Python function costs some 4 us next to a model's kernels.
    """

    def __init__(self) -> None:
        self.step = 0
        """Steps done so far."""
        self.newest = _NOWHERE
        """The user's place that asked for the event that was noted last."""
        self.users: set[str] = set()
        """Files of the user's that something was asked for in."""
        self._others: set[str] = set()
        self._noted: list[tuple[int, str, frames.Place]] = []
        self.add: Callable[[tuple[int, str, frames.Place]], object] = self._noted.append
        """Given an event that was found, `newest` being its place."""

    def note(self, kind: str, depth: int | None = 2) -> None:
        """Note an event.

        Args:
            kind: one of `event_kinds`.
            depth: calls up from here to where it happens, and the user's code around that is looked
                for; None if no code of the user's asks for it.
        """
        frame: FrameType | None = None if depth is None else sys._getframe(depth)
        place = _NOWHERE
        while frame is not None:
            code = frame.f_code
            if self._is_users(code.co_filename):
                place = code, frame.f_lasti
                break
            frame = frame.f_back
        self.newest = place
        self.add((self.step, kind, place))

    def _is_users(self, file: str) -> bool:
        if file not in self.users and file not in self._others:
            (self.users if is_users(file) else self._others).add(file)
        return file in self.users

    def check_limit(self) -> None:
        """Keep no more events if there are enough."""
        if len(self._noted) >= _MOST:
            self.add = _forget

    def as_tuple(self) -> tuple[Event, ...]:
        """Return what was noted, in order."""
        names: dict[tuple[int, int], str] = {}
        found = []
        for step, kind, place in self._noted:
            code, offset = place
            # To hash a code object is to hash all that it holds.
            where = names.get((id(code), offset))
            if where is None:
                where = names[id(code), offset] = frames.location_at(place)
            found.append(Event(step, kind, where))
        return tuple(found)


def _forget(event: tuple[int, str, frames.Place]) -> None:
    """Take an event that is not kept."""
