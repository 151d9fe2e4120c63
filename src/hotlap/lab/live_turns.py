"""The turns of a live process whose techniques are switched between its steps."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hotlap.errors import TrialError
from hotlap.lab.decisions import Combination
from hotlap.lab.trial import Trial
from hotlap.trial.turns import settling_steps, steps_of_turn

_SLOW = 20.0
_SLOW_S = 60.0
"""What a turn may take beside its steps: evaluation at an epoch's end, a checkpoint, compiling."""
_DISTURBED = 0.05
"""From which share of a turn on, in which its threads had no core, it is taken again."""
_AGAIN = 2
_RECENT, _USUAL = 20, 0.7
"""Turns of which that share must be disturbed to be taken as they are: others are rare there."""


@dataclass(frozen=True)
class Turn:
    """Ms of a step."""

    median_ms: float
    mean_ms: float
    waited: float = 0.0
    """How long its threads had no core, as a share of the turn; above 1 where several had none."""


class LiveTurns:
    """The turns of one process.

    Args:
        step_ms: what a plain step takes.
        settle: steps after a switch that do not count.
        planned: steps that the script has, None if that is not known.
        taken: steps before the first turn.
        reserved: steps that are needed after the last one.
    """

    def __init__(
        self, step_ms: float, settle: int, planned: int | None, taken: int, reserved: int = 0
    ) -> None:
        self.trial: Trial | None = None
        self.has_ended = False
        """True once the script has come to its end."""
        self.taken = taken
        """Steps that the script has taken."""
        self.failed: dict[int, str] = {}
        """Number of a technique that cannot be switched here -> why."""
        self._step_ms, self._planned, self._reserved = step_ms, planned, reserved
        self._all: dict[Combination, list[Turn]] = {}
        """Every turn, also those that were taken again."""
        self._disturbed: deque[bool] = deque(maxlen=_RECENT)
        """Of the last turns, taken once: whether other processes had the cores."""
        self._settle = settling_steps(step_ms, settle)
        self.steps = steps_of_turn(step_ms)

    def fits(self, turns: int) -> bool:
        """True if the script has steps for so many turns."""
        steps = turns * (self.steps + self._settle) + self._reserved
        return self._planned is None or self._planned - self.taken > steps

    def longest_s(self, steps: int) -> float:
        """Return how long so many steps are waited for."""
        return _SLOW_S + _SLOW * steps * self._step_ms / 1e3

    def note_failures(self, message: Mapping[str, Any]) -> None:
        """Note which techniques a message says could not be switched."""
        self.failed |= {int(number): why for number, why in message["failed"].items()}

    def lengthen(self) -> None:
        """Let each turn be twice as long from now on."""
        self.steps *= 2

    def slowed(self) -> float:
        """Return how many times as long as undisturbed ones all steps took, on average.

        1 where that is not known. All turns count, for as long as they took: a turn that is taken
        again because of other processes is a part of what they cost.
        """
        taken = undisturbed = 0.0
        for turns in self._all.values():
            # Of the median: an evaluation in one of them is the script's own.
            alone = [each.mean_ms for each in turns if each.waited <= _DISTURBED]
            if alone:
                disturbed = [each.mean_ms for each in turns if each.waited > _DISTURBED]
                taken += sum(disturbed) + len(alone) * median(alone)
                undisturbed += len(turns) * median(alone)
        return max(1.0, taken / undisturbed) if undisturbed else 1.0

    def take(self, on: Combination) -> Turn | None:
        """Return what a step took with these techniques, None if the script has ended.

        A turn in which other processes had the cores is taken again, unless most of them are so.
        Of turns that all are disturbed the median counts: it may be its own threads that wait.
        """
        most = 1 if sum(self._disturbed) >= _USUAL * _RECENT else 1 + _AGAIN
        taken: list[Turn] = []
        while len(taken) < most:
            turn = self._take_once(on)
            if turn is None:
                return None
            self._all.setdefault(on, []).append(turn)
            if not taken:
                self._disturbed.append(turn.waited > _DISTURBED)
            if turn.waited <= _DISTURBED:
                return turn
            taken.append(turn)
        return sorted(taken, key=lambda each: each.median_ms)[len(taken) // 2]

    def _take_once(self, on: Combination) -> Turn | None:
        assert self.trial is not None
        count = self.steps + self._settle
        self.trial.send("turn", steps=count, skip=self._settle, on=list(on))
        try:
            message = self.trial.message(["turn"], self.longest_s(count))
        except TrialError as error:
            if error.reason not in ("ended_early", "timeout", "crashed", "memory"):
                raise
            self.has_ended = error.reason == "ended_early"
            return None
        self.taken += count
        self.note_failures(message)
        waited = message["waited_ms"] / message["whole_ms"]
        return Turn(message["median_ms"], message["ms"] / self.steps, waited)
