"""Role `follow` of a watched run: a rank that is not measured tells where its own time goes."""

import time

from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.trace.schema import PHASES

_EVERY_S = 0.5


class Pace(Part):
    """Sends the mean time of each phase now and then.

    Args:
        session: what it is a part of.
        watch: times the phases.
    """

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session, self._watch = session, watch
        self._told = time.monotonic()

    def step_done(self, optimizer: object) -> None:
        del optimizer
        now = time.monotonic()
        # Times of a device are known late, and to ask for them would wait for it.
        if now - self._told < _EVERY_S or self._watch.recorder.clock.name != "host":
            return
        self._told = now
        means = self._watch.recorder.means_ms()
        sums = self._watch.wrappers.facts(self._watch.steps)
        self._session.channel.send(
            "pace",
            rank=self._session.config.options["follows"],
            phases=dict(zip(PHASES, means, strict=True)),
            exposed_ms=self._watch.wrappers.exposed_ms(self._watch.roots, self._watch.steps),
            unused_bytes=0 if sums is None else sums.unused_bytes,
        )
