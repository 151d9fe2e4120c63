"""`TimePlan`: until when races last, and steps and seconds of a proof, from the watched run."""

from dataclasses import dataclass, replace

from hotlap.lab.proving import NARROW_SAMPLES, SEED_STEPS
from hotlap.lab.run_checks import LEAST_SEEDS
from hotlap.lab.whole_run import seconds_to_read
from hotlap.trace.schema import Trace
from hotlap.tuning.budget import Budget

TURN_S = 0.6
"""A turn of the plain script. Shorter ones are mostly cold caches."""
CONFIRM_TURN_S = 0.3
"""The same where a gain is only confirmed."""
CONFIRM_ROUNDS = 5
"""Turns of each arm there: what gains is known, and processes differ by more than turns."""
_STARTS_BEFORE_WATCHING = 12
_PROVE_SHARE = 0.35
_PROVE_NARROW_SHARE = 0.5
_REPEATED = 5
"""Steps that one sampled step costs: written, read, and repeated in float64."""
_WATCH_SHARE = 0.2
_FIRST_SHARE = 0.45
LEAST_HORIZON = 64
_ENOUGH_HORIZON = 256
"""Steps that show whatever happens to every 50th update, where an epoch is shorter."""
_MOST_HORIZON = 2000
_BEYOND_EPOCH = 64
_DIGESTS_S = 0.005
"""Seconds that a proof adds to each step: digests, and updates repeated on sampled elements. About
5 ms on two cores of an AMD EPYC, for a model of 670,000 parameters."""
_LEAST_TURNS = 3
_STEPS_BEFORE_TURNS = 35
PROOF_RUNS, RECIPE_PROOF_RUNS = 1.6, 2.2
"""Runs that the proof of one plan takes: the plain run and the plan's, at the same time; those of
a recipe, and where a device holds one process, are followed one after the other."""
_CONFIRMING, _PROVING = 3, 2.2
"""Runs that it takes: the plain script twice and the plan; what is followed costs more."""
_RUNS_TO_AGE = 8
"""Four to confirm a plan, and as much for its proof."""
_AGE_SHARE = 0.5
_START_SHARE = 0.6
"""Processes start two at a time; what that leaves of the time for each."""
_AT_ONCE_SHARE = 0.7
"""The same of two that are followed step by step at the same time."""


@dataclass(frozen=True)
class TimePlan:
    """What fits, and until when."""

    horizon: int
    """Steps that a verdict rests on."""
    fill_ahead: bool
    """True if samples must be in memory from the first step, or the proof would never see one."""
    first_until: float
    """When the first race ends at the latest, as `time.monotonic()` counts."""
    second_until: float
    watch_s: float
    """Seconds kept for watching the tuned plan from its very start."""
    arm_s: float
    """Seconds that one more arm takes in a race, for its start and the fewest turns."""
    confirm_s: float
    """The same where the race only confirms what is known from one live process."""
    fill_s: float
    """Seconds that it takes to read every training sample: what a plan that keeps them needs to
    start, beside the others."""
    prove_s: float
    """Seconds that one more plan's proof takes."""
    prove_narrow_s: float
    """The same where the plan computes in a narrower format."""
    start_s: float = 0.0
    """Of that, what passes before the first step."""
    start_share: float = _START_SHARE
    """What remains of the seconds of a start where a race starts many processes."""
    least_horizon: int = LEAST_HORIZON
    """The fewest steps that a verdict may rest on."""
    processes: int | None = None
    """Processes that fit into the memory of a device at once, None if that is not limited."""
    at_once: bool = True
    """True if the plain run and a plan's are followed at the same time."""

    @property
    def _step_s(self) -> float:
        return (self.prove_s - self.start_s) / self.horizon

    def short_proof_s(self, *, fills: bool) -> float:
        """Return the seconds of a run over the fewest steps that show what happens at times."""
        steps = max(self.least_horizon, min(self.horizon, _ENOUGH_HORIZON))
        return self.start_s + fills * self.fill_s + steps * self._step_s

    def shorten(self, prove_s: float, *, fills: bool) -> "TimePlan | None":
        """Return a plan whose proofs take at most `prove_s` seconds each, None if that is too few.

        Args:
            prove_s: seconds.
            fills: True if the plan to be proven keeps the whole data set in memory.
        """
        before_s = self.start_s + (self.fill_s if fills else 0.0)
        step_s = self._step_s
        horizon = min(self.horizon, int((prove_s - before_s) / step_s))
        if horizon < self.least_horizon:
            return None
        saved_s = (self.horizon - horizon) * step_s
        return replace(
            self,
            horizon=horizon,
            # Such a proof may end before the second epoch.
            fill_ahead=True,
            prove_s=self.prove_s - saved_s,
            prove_narrow_s=self.prove_narrow_s - saved_s,
        )


def plan_time(
    trace: Trace,
    budget: Budget,
    *,
    narrow: bool = False,
    plans: int | None = None,
    reads_all: bool = False,
    age: int = 0,
    at_once: bool = True,
    most_steps: int | None = None,
) -> TimePlan:
    """Share out what is left of the budget.

    Args:
        trace: the plain run.
        budget: what is left of it is shared out.
        narrow: True if a plan with narrower formats may have to be proven.
        plans: how many have to be proven, if that is known.
        reads_all: True if one of them keeps the whole data set in memory.
        age: steps before which one of them does not show, see `Technique.acts_late`.
        at_once: True if two runs are followed at a time, see `Prover`.
        most_steps: that a proof may follow, None if that is left to the budget.
    """
    setup = trace.setup_s + 1.0
    step = trace.step_ms()["mean"] / 1e3 + _DIGESTS_S
    watch_s = min(_WATCH_SHARE * budget.left, setup + 1.0 + 1.7 * _period_s(trace))
    if budget.left < _STARTS_BEFORE_WATCHING * setup:
        # Then the plan's whole run is predicted from the plain run's.
        watch_s = 0.0
    # Many steps are repeated for these, and other seeds trained from, the plain run's as well.
    seeds_s = setup + (LEAST_SEEDS - 1) * SEED_STEPS * step
    more_s = setup + _REPEATED * NARROW_SAMPLES * step + seeds_s
    share = _PROVE_NARROW_SHARE if narrow else _PROVE_SHARE
    narrow_s = more_s + seeds_s if narrow else 0.0
    # The plain run and the first plan, and then each other plan.
    share_of_run = _AT_ONCE_SHARE if at_once else 1.0
    starts = runs = 2 * share_of_run + (plans or 3) - 1
    fits = (share * budget.left - starts * setup - narrow_s) / (runs * step)
    fits = max(fits, age + _BEYOND_EPOCH if age else 0)
    horizon, fill_ahead = _horizon(trace, fits if most_steps is None else min(fits, most_steps))
    fill_s = seconds_to_read(trace)
    fills_s = (plans or 3) * fill_s if fill_ahead and reads_all else 0.0
    prove_all = starts * setup + runs * horizon * step + fills_s + narrow_s
    second_until = budget.deadline(prove_all + watch_s)
    racing = max(0.0, budget.left - prove_all - watch_s)
    first_until = budget.deadline(prove_all + watch_s + (1 - _FIRST_SHARE) * racing)
    turn = max(TURN_S, _LEAST_TURNS * step)
    start_share = _start_share(trace)
    before_turns_s = start_share * setup + (_STEPS_BEFORE_TURNS + age) * step
    return TimePlan(
        horizon=horizon,
        fill_ahead=fill_ahead,
        first_until=first_until,
        second_until=second_until,
        watch_s=watch_s,
        arm_s=before_turns_s + _LEAST_TURNS * turn,
        confirm_s=before_turns_s + CONFIRM_ROUNDS * max(CONFIRM_TURN_S, 3 * step),
        fill_s=fill_s,
        prove_s=setup + horizon * step,
        prove_narrow_s=setup + horizon * step + more_s,
        start_s=setup,
        start_share=start_share,
        least_horizon=min(horizon, age + _BEYOND_EPOCH if age else LEAST_HORIZON),
        processes=trace.facts.processes_at_once,
        at_once=at_once,
    )


def seconds_after_races(trace: Trace) -> float:
    """Return about how many seconds it takes to confirm a plan and to prove it over few steps."""
    setup, step = trace.setup_s + 1.0, trace.step_ms()["mean"] / 1e3
    turns = _STEPS_BEFORE_TURNS * step + CONFIRM_ROUNDS * max(CONFIRM_TURN_S, 3 * step)
    proof = setup + LEAST_HORIZON * (step + _DIGESTS_S)
    return _CONFIRMING * (_start_share(trace) * setup + turns) + _PROVING * proof


def has_time_for_age(trace: Trace, budget: Budget, age: int) -> bool:
    """True if plans can be confirmed and proven after so many steps of their own."""
    step = trace.step_ms()["mean"] / 1e3 + _DIGESTS_S
    return _RUNS_TO_AGE * age * step < _AGE_SHARE * budget.left


def _period_s(trace: Trace) -> float:
    """Return the seconds of the epochs that were seen."""
    return sum(sum(row) for row in trace.steps) / 1e3


def _horizon(trace: Trace, fits: float) -> tuple[int, bool]:
    """Return the steps to follow, and whether to fill ahead.

    A little more than an epoch shows both how an epoch is read and how the next one is served.
    """
    epoch = trace.facts.steps_per_epoch
    planned = trace.facts.planned_steps or _MOST_HORIZON
    most = min(max(LEAST_HORIZON, int(fits)), _MOST_HORIZON, planned)
    if epoch is not None and epoch + _BEYOND_EPOCH <= most:
        return max(epoch + _BEYOND_EPOCH, min(_ENOUGH_HORIZON, most)), False
    return most, epoch is None or most < epoch + _BEYOND_EPOCH // 4


def _start_share(trace: Trace) -> float:
    return 1.0 if trace.evaluates_first else _START_SHARE
