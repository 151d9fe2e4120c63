"""`LineSampler`: a thread that counts the user's running lines; the hottest of each phase."""

import collections
import linecache
import sys
import threading

from hotlap.trace import frames
from hotlap.trace.clock import PhaseClock
from hotlap.trace.schema import PHASES, HotLine

_EVERY_S = 0.002
_KEPT_PER_PHASE = 10
TEXT = 120
"""Characters of a line that are kept."""


class LineSampler(threading.Thread):
    """Looks at the training thread's stack again and again, and counts lines by phase.

    Args:
        clock: knows the phase that the training thread is in.
    """

    def __init__(self, clock: PhaseClock) -> None:
        super().__init__(name="hotlap-lines", daemon=True)
        self.clock = clock
        self.counts: collections.Counter[tuple[int, str, int]] = collections.Counter()
        self._target = threading.get_ident()
        self._ended = threading.Event()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_EVERY_S / 4)
        self.start()

    def run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            phase, running = self.clock.current, frames.running_in(self._target)
            inner = next((each for each in running if each.is_users), None)
            if inner is not None:
                self.counts[phase, inner.code.co_filename, inner.line] += 1

    def stop(self) -> tuple[HotLine, ...]:
        """End the thread and return the hottest lines of each phase, hottest first."""
        self._ended.set()
        self.join()
        sys.setswitchinterval(self._interval)
        return self.lines()

    def lines(self) -> tuple[HotLine, ...]:
        """Return the hottest lines of each phase so far, with their share of its samples."""
        counts = self.counts.copy()
        totals: collections.Counter[int] = collections.Counter()
        kept: collections.Counter[int] = collections.Counter()
        for (phase, *_), count in counts.items():
            totals[phase] += count
        found = []
        for (phase, file, line), count in counts.most_common():
            kept[phase] += 1
            if kept[phase] <= _KEPT_PER_PHASE:
                text = linecache.getline(file, line).strip()[:TEXT]
                where = f"{frames.shorten_path(file)}:{line}"
                found.append(HotLine(PHASES[phase], where, count / totals[phase], text, count))
        return tuple(found)
