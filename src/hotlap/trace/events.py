"""`Events`: notes events of a training loop in order, with their step and the user's line."""

import sys
from types import FrameType

from hotlap.trace import event_kinds, frames
from hotlap.trace.schema import Event
from hotlap.usercode import is_users

_MOST = 200_000
"""Events that are kept: the same few come in every step, and a watch is not to use up memory."""
_NOWHERE: frames.Place = (None, 0)
_IN_EVERY_STEP = frozenset(
    (
        event_kinds.BACKWARD,
        event_kinds.CLIP,
        event_kinds.OPTIMIZER_STEP,
        event_kinds.SCALER_UPDATE,
        event_kinds.SCHEDULER_STEP,
        event_kinds.UNSCALE,
        event_kinds.ZERO_GRAD,
    )
)


class Events:
    """Notes what happens, with the step in which it does and the user's line that asked for it.

    What is noted in every step is noted as it is found, and its line is looked up at the end. Steps
    may be left out, see `is_asleep`; what happens between the others is in order.
    """

    def __init__(self) -> None:
        self.step = 0
        """Steps done so far."""
        self.newest = _NOWHERE
        """The user's place that asked for the event that was noted last."""
        self.is_asleep = False
        """True while nothing is noted that comes in every step: whole steps are left out."""
        self._noted: list[tuple[int, str, frames.Place]] = []
        self._users: dict[str, bool] = {}

    def note(self, kind: str, depth: int | None = 2) -> None:
        """Note an event.

        Args:
            kind: one of `event_kinds`.
            depth: calls up from here to where it happens, and the user's code around that is looked
                for; None if no code of the user's asks for it.
        """
        if self.is_asleep and kind in _IN_EVERY_STEP:
            return
        frame: FrameType | None = None if depth is None else sys._getframe(depth)
        place = _NOWHERE
        while frame is not None:
            code = frame.f_code
            # Next to a model's kernels, a cache that keeps an order costs more than it saves.
            is_known = self._users.get(code.co_filename)
            if is_known is None:
                is_known = self._users[code.co_filename] = is_users(code.co_filename)
            if is_known:
                place = code, frame.f_lasti
                break
            frame = frame.f_back
        self.newest = place
        if len(self._noted) < _MOST:
            self._noted.append((self.step, kind, place))

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
