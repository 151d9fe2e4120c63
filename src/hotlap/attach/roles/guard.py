"""In the role `run`: an exact technique that costs more than it saves is switched off."""

import logging
import random
from math import log
from typing import Any

from hotlap.attach.apply import PlanInProcess
from hotlap.attach.roles.loop_ends import LoopEnds
from hotlap.attach.roles.session import Part, Session
from hotlap.trial.evidence import EVIDENCE, count_above, decide
from hotlap.trial.turns import TurnClock, steps_of_turn

logger = logging.getLogger("hotlap")

_EVERY = 50
"""Steps between two looks at what can be compared."""
_FIRST_TURN = 10
"""Steps that show how long a turn is to be."""
_FEWEST_PAIRS = 3
_LARGE = 0.15
"""Of log(without / with): what gains so much by a few pairs of turns is compared no longer."""
_MOST_PAIRS = 40
"""Of turns: what is not decided by then makes no difference that matters."""


class Guard(Part):
    """Trains in turns with and without a technique, until one of the two is decided to be faster.

    Only techniques take part that leave every bit as it is, with and without them: what the script
    learns does not depend on what is decided here.

    Args:
        session: what it is a part of.
        plan: what the script runs under.
    """

    def __init__(self, session: Session, plan: PlanInProcess) -> None:
        self._session, self._plan = session, plan
        self._waiting = list(plan.switchable_exactly())
        self._evidence = EVIDENCE * max(1, len(self._waiting))
        # The script's own generators must not be drawn from.
        self._generator = random.Random()
        self._ends = LoopEnds()
        self._steps = 0
        self._compared: _Compared | None = None

    @property
    def has_work(self) -> bool:
        """True if there is something left that may be switched off."""
        return bool(self._waiting) or self._compared is not None

    def step_done(self, optimizer: Any) -> None:
        if not self._ends.ends(optimizer):
            return
        self._steps += 1
        try:
            self._follow()
        except Exception:
            # The script's own objects may do anything, and its run is what counts.
            logger.warning("techniques are not compared any further", exc_info=True)
            self._leave_on()
            self._end()

    def _leave_on(self) -> None:
        """Switch on what a turn had switched off."""
        if self._compared is None:
            return
        name, self._compared = self._compared.name, None
        try:
            self._plan.switch(name, on=True)
        except Exception as error:
            why = f"it cannot be switched on again: {type(error).__name__}: {error}"
            self._plan.note_switched_off(name, why)

    def _follow(self) -> None:
        if self._compared is None:
            if self._steps % _EVERY == 0:
                self._begin_next()
            return
        is_on = self._compared.turn_done()
        if is_on is None:
            return
        state = self._compared.state(self._evidence)
        if state is None and len(self._compared.logs) < _MOST_PAIRS:
            self._plan.switch(self._compared.name, on=self._compared.begin_turn(self._generator))
            return
        self._conclude(self._compared, costs=state == "faster")

    def _begin_next(self) -> None:
        name = next((each for each in self._waiting if self._plan.is_ready(each)), None)
        if name is not None:
            self._waiting.remove(name)
            self._compared = _Compared(name, self._plan.settle(name))

    def _conclude(self, compared: "_Compared", *, costs: bool) -> None:
        self._compared = None
        if costs and compared.is_slower_by_means():
            self._plan.switch_off(compared.name, f"after {self._steps} steps: {compared}")
        else:
            self._plan.switch(compared.name, on=True)
        if not self.has_work:
            self._end()

    def _end(self) -> None:
        # Hearing of each step costs something, too. What records the run goes on.
        self._session.play(*(part for part in self._session.parts if part is not self))


class _Compared:
    """A technique's turns.

    Args:
        name: the technique's.
        settle: steps after a switch that do not count.
    """

    def __init__(self, name: str, settle: int) -> None:
        self.name, self._settle = name, settle
        self.logs: list[float] = []
        """Of a step's time with it over that without it, by the medians of a pair of turns."""
        self._means: list[float] = []
        self._ms: tuple[list[float], list[float]] = ([], [])
        """Of a step without it, and with it."""
        self._clock = TurnClock()
        self._is_measuring = True
        self._steps = _FIRST_TURN
        self._order = [True]
        self._turns: dict[bool, tuple[float, float]] = {}
        self._clock.begin(self._steps + settle, settle)

    def __str__(self) -> str:
        from statistics import median

        without, with_it = (median(each) for each in self._ms)
        return (
            f"a step takes {with_it:.2f} ms with it and {without:.2f} ms without it "
            f"({count_above(self.logs)} of {len(self.logs)} pairs of turns)"
        )

    def turn_done(self) -> bool | None:
        """Count a step; return whether the technique was on in the turn that ended, if one did."""
        if not self._clock.step_done():
            return None
        is_on = self._order.pop()
        if self._is_measuring:
            self._is_measuring = False
            self._steps = steps_of_turn(self._clock.median_ms)
            return is_on
        # Where a step without it takes much longer, fewer of them tell as much.
        self._steps = min(self._steps, steps_of_turn(self._clock.median_ms))
        self._turns[is_on] = self._clock.median_ms, self._clock.ms / self._clock.counted
        self._ms[is_on].append(self._clock.median_ms)
        if not self._order:
            (on, on_mean), (off, off_mean) = self._turns[True], self._turns[False]
            self.logs.append(log(on / off))
            self._means.append(log(on_mean / off_mean))
        return is_on

    def state(self, wanted: float) -> str | None:
        """Return whether steps without it are `faster` or `not_faster`, None while that is open."""
        from statistics import median

        if len(self.logs) >= _FEWEST_PAIRS and median(self.logs) < -_LARGE:
            # It stays on then, whatever the evidence: more turns without it cost more.
            return "not_faster"
        return decide(self.logs, wanted)

    def begin_turn(self, generator: random.Random) -> bool:
        """Begin the next turn; return whether the technique is to be on in it."""
        if not self._order:
            self._order = [True, False]
            # In a fixed order, what a script does every so many steps would fall on one of them.
            generator.shuffle(self._order)
        self._clock.begin(self._steps + self._settle, self._settle)
        return self._order[-1]

    def is_slower_by_means(self) -> bool:
        """True if the turns' means agree: what lengthens few steps hides from medians."""
        from statistics import median

        return median(self._means) > 0
