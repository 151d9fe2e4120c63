"""`Arm`: a plan's process in a race: starts it, takes its turns, restarts it, leaves it out."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from hotlap.errors import HotlapError, TrialError
from hotlap.host.probes import affinity
from hotlap.lab.trial import Lab, Trial
from hotlap.lab.turn_lengths import (
    WARM_UP,
    skipped_steps,
)
from hotlap.plan import Plan

_READY_S = 180.0
_LEAST_READY_S = 5.0
_LEAST_READY = 3.0
"""Either of them in starts of the plain script: beside another process each takes longer."""
_SLOWEST_STEP_S = 60.0
_GIVEN_UP = 20.0
"""How many times slower than the plain run a turn may be before it is ended. With another process
on the machine, threads that wait for each other may be slower by far more."""
_GIVEN_UP_S = 60.0
"""Seconds that a turn has on top of that, for what is compiled, or evaluated, in it."""


@dataclass
class Arm:
    """One way to run the script, in a race."""

    name: str
    plan: Plan
    lab: Lab
    turns_ms: list[float] = field(default_factory=list)
    """Median ms of a step, one a round; the first steps of each turn are left out (cold caches).
    The mean on a GPU, where steps are queued, and where turns are whole epochs."""
    means_ms: list[float] = field(default_factory=list)
    """Mean ms of a step, one a round, of the same steps."""
    is_awaited: bool = False
    """True if its start is waited for whatever is left until the deadline."""
    setup_s: float = 0.0
    """From process start to the gate, filling included."""
    techniques: list[dict[str, str]] = field(default_factory=list)
    peak_bytes: int | None = None
    """Most bytes that its processes held at once, None before a turn."""
    failed: str | None = None
    """Why it was left out of the race."""
    is_slow: bool = False
    """True if it was left out because it is far slower than the plain run."""
    is_late: bool = False
    """True if it was left out because it was not ready in time."""
    trial: Trial | None = None
    warm_up: tuple[int, ...] = WARM_UP
    """Steps of the turns that do not count, in each of its processes."""
    warm_up_s: float = 0.0
    """What these turns took in its first process: what compiles does so there."""
    capacity: int | None = None
    """Steps that one process has for turns, None if that is not known."""
    taken: int = 0
    """Steps that its process has taken in turns."""
    ended_after: int | None = None
    """Steps after which the script came to its end in one of its processes, None if in none."""
    is_alone: bool = False
    """True if it has a process only while it takes a turn, see `at_the_gate`."""

    @property
    def longest_ready_s(self) -> float:
        """How long a start of its process is waited for, at the most."""
        return max(_READY_S, _LEAST_READY * self.lab.plain_start_s)

    def forget_turns(self) -> None:
        """Be as before the race; what is known of the script's end stays."""
        self.turns_ms.clear()
        self.means_ms.clear()
        self.warm_up_s, self.taken, self.trial = 0.0, 0, None
        self.failed, self.is_slow, self.is_late = None, False, False


def start_all(
    arms: Sequence[Arm],
    twins: Sequence[str],
    deadline: float | None,
    progress: Callable[[str], None],
    at_a_time: int | None = None,
    *,
    plain_first: bool = False,
) -> None:
    """Bring every arm to its gate, `at_a_time` or as many as there are cores.

    Up to the gate a process imports, reads and decodes, one thread each; nobody is timed. A plan
    that takes half of the time that is left is not waited for: one that compiles may take minutes.
    """
    # The plans first: one that reads the whole data set takes longest. On a device, whose memory
    # all share, the plain runs: a plan that needs more than there is left is one that fails.
    ordered = sorted(arms, key=lambda arm: (arm.name in twins) != plain_first)
    pool = ThreadPoolExecutor(at_a_time or affinity())
    try:
        starts = [pool.submit(_start, arm, twins, deadline, progress) for arm in ordered]
        for start in as_completed(starts):
            start.result()
    except BaseException:
        for arm in arms:
            if arm.trial is not None:
                arm.trial.end_with("crashed", "was ended: another one could not be started")
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start(
    arm: Arm, twins: Sequence[str], deadline: float | None, progress: Callable[[str], None]
) -> None:
    """Start an arm's process and wait for its gate."""
    try:
        arm.trial = arm.lab.start("race", arm.plan, fill_ahead=True)
    except HotlapError as error:
        leave_out(arm, error, must=arm.name in twins)
        return
    longest_s = wait_s = arm.longest_ready_s
    if deadline is not None and arm.name not in twins and not arm.is_awaited:
        least_s = max(_LEAST_READY_S, _LEAST_READY * arm.lab.plain_start_s)
        wait_s = min(longest_s, max(least_s, (deadline - time.monotonic()) / 2))
    try:
        arm.setup_s = arm.trial.message(["ready"], wait_s)["setup_s"]
        arm.trial.pause()
        progress(f"{arm.name}: ready after {arm.setup_s:.1f} s")
    except TrialError as error:
        if error.reason == "timeout" and wait_s < longest_s:
            words = f"it was not ready after {wait_s:.0f} s. Set a larger --budget"
            error = TrialError(words, reason="timeout")
            arm.is_late = True
        leave_out(arm, error, must=arm.name in twins)
    except HotlapError as error:
        leave_out(arm, error, must=arm.name in twins)


def leave_out(arm: Arm, error: HotlapError, *, must: bool) -> None:
    """End an arm's process and note why; raise the error if it must take part."""
    if must:
        raise error
    arm.failed = str(error).splitlines()[0]
    if arm.trial is not None:
        arm.trial.kill()


def take_turn(arm: Arm, steps: int, plain_ms: float | None) -> dict[str, Any]:
    """Let an arm train for so many steps.

    Args:
        arm: has a trial at its gate.
        steps: of the turn.
        plain_ms: what a step of the plain run takes; None if the turn has to be waited for.
    """
    if arm.capacity is not None and arm.taken + steps > arm.capacity:
        _start_again(arm, plain_ms)
    trial = arm.trial
    assert trial is not None
    trial.resume()
    trial.send("turn", steps=steps, skip=skipped_steps(steps))
    try:
        message = trial.message(["turn"], _longest_wait(steps, plain_ms))
    except TrialError as error:
        if error.reason == "ended_early":
            if trial.report is not None:
                arm.ended_after = trial.report["steps"]
            if _has_room(arm, steps):
                # Nobody knew how many steps the script has, or its loops promised more: now it is
                # known that it has these.
                arm.capacity = arm.taken
                return take_turn(arm, steps, plain_ms)
        if error.reason != "timeout" or plain_ms is None:
            raise
        arm.is_slow = True
        raise TrialError(
            f"{steps} steps took more than {_longest_wait(steps, plain_ms):.0f} s; the plain run "
            f"takes {plain_ms:.2f} ms a step",
            reason="timeout",
        ) from error
    trial.pause()
    arm.taken += steps
    arm.techniques = message["techniques"]
    arm.peak_bytes = max(arm.peak_bytes or 0, message["peak_bytes"])
    return {**message, "ms_per_step": message["ms"] / message["steps"]}


def _has_room(arm: Arm, steps: int) -> bool:
    """True if another process, of a script that ended early in this one, has a turn for sure."""
    return arm.taken >= sum(arm.warm_up) + steps


def _start_again(arm: Arm, plain_ms: float | None) -> None:
    """Give an arm another process, warmed up: the script is too short for all turns in one."""
    assert arm.trial is not None
    arm.trial.kill()
    _start_afresh(arm)
    for steps in arm.warm_up:
        take_turn(arm, steps, plain_ms)


def _start_afresh(arm: Arm) -> None:
    arm.taken = 0
    arm.trial = arm.lab.start("race", arm.plan, fill_ahead=True)
    arm.setup_s = arm.trial.message(["ready"], arm.longest_ready_s)["setup_s"]


@contextlib.contextmanager
def at_the_gate(arm: Arm, plain_ms: float | None, *, warms_up: bool = False) -> Iterator[None]:
    """Give an arm that is alone a process inside the block; one that has its own keeps it.

    Args:
        arm: the arm.
        plain_ms: what a step of the plain run takes, None if that is not known.
        warms_up: a new process takes the turns that do not count first.
    """
    if not arm.is_alone:
        yield
        return
    try:
        _start_afresh(arm)
        for steps in arm.warm_up if warms_up else ():
            take_turn(arm, steps, plain_ms)
        yield
    finally:
        if arm.trial is not None:
            arm.trial.kill()
            arm.trial = None


def _longest_wait(steps: int, plain_ms: float | None) -> float:
    """Return the seconds after which a turn is given up."""
    if plain_ms is None:
        return max(30.0, steps * _SLOWEST_STEP_S)
    return _GIVEN_UP * steps * plain_ms / 1000 + _GIVEN_UP_S
