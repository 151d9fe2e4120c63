"""Role `duel`: an attached script trains in turns, under one live plan after another.

A process in the role `observe` can go on as one, once it has been watched.
"""

from typing import Any

from hotlap.attach.live import LiveTechniques
from hotlap.attach.roles.keep_steps import KeepSteps
from hotlap.attach.roles.loop_ends import LoopEnds
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part, Session
from hotlap.trial.turns import Turns


class Duel(Part):
    """Stops at a gate after some steps, then takes turns, each under the plan that it is told.

    Args:
        session: what it is a part of. Its option `started` is when the process was started.
        live: the techniques; a turn names those that are on by their numbers.
        age: steps before the gate.
        watch: what has watched the process before; without it no whole steps can be kept.
    """

    def __init__(
        self, session: Session, live: LiveTechniques, age: int, watch: Watch | None = None
    ) -> None:
        started = session.config.options["started"]
        self._session, self._live, self._watch = session, live, watch
        keep = None if watch is None else self._keep
        self._turns = Turns(
            session.channel,
            started,
            live.proofs,
            session.stop,
            begin=self._begin,
            keep=keep,
            failures=live.switch_failures,
        )
        self._ends = LoopEnds()
        self._left = age

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        if self._watch is not None:
            self._watch.loaders.place(loader, iterator)

    def root_found(self, module: Any) -> None:
        if self._watch is not None:
            self._watch.roots.append(module)

    def step_done(self, optimizer: Any) -> None:
        if not self._ends.ends(optimizer):
            return
        if self._turns.is_open:
            self._turns.step_done()
            return
        self._left -= 1
        if self._left <= 0:
            self._live.prepare()
            failed = {str(number): why for number, why in self._live.failures().items()}
            self._turns.gate(failed=failed)

    def _begin(self, message: dict[str, Any]) -> None:
        self._live.use(message["on"])

    def _keep(self, message: dict[str, Any]) -> None:
        """Take steps under the plan that is told, and keep some of them whole."""
        assert self._watch is not None
        self._begin(message)
        self._session.play(KeepSteps(self._watch, message, self._end_keeping))

    def _end_keeping(self, **found: Any) -> None:
        self._session.play(self)
        failed = {str(number): why for number, why in self._live.switch_failures().items()}
        self._session.channel.send("kept", failed=failed, **found)
        self._turns.wait()


def go_on_as_duel(session: Session, watch: Watch) -> None:
    """Report what was watched, and take turns as soon as the techniques are told; else end here.

    Args:
        session: has been watched, and has no plan.
        watch: what has watched it.
    """
    if session.ranks > 1:
        # This process has started the others; techniques would be switched in it alone.
        session.stop()
    session.finish("limit")
    message = session.channel.receive()
    if message is None or message["kind"] != "duel":
        session.stop()
        return
    live = LiveTechniques(message["plans"], extra=session.config.techniques)
    # What they would have heard of, had they been there from the start.
    for loader, iterator in watch.loaders.open_iterators():
        live.iterator_wanted(loader)
        live.iterator_made(loader, iterator)
    for root in watch.roots:
        live.root_found(root)
    session.go_on(live, Duel(session, live, message["age"], watch))
