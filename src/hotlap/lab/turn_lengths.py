"""How many steps a turn of a race has: enough seconds, no more than the script has left."""

from hotlap.errors import TrialError
from hotlap.trace.schema import Trace

WARM_UP = (5, 30)
"""Steps of the turns that do not count, where steps are short."""
LEAST_STEPS = 4
"""A run of fewer has no turn that could be timed behind its first steps."""
_WARM_UP_S = 1.0
"""A turn that does not count takes no longer; one step, where a step does."""
_WARM_UP_SHARE = 4
"""Of a short run, at most one step in so many is spent on warming up."""
_ENOUGH_S = 0.1
"""A turn that is cut short to fit takes at least this long, else the script is started again."""
_LONGEST_TURN = 2000
_LATE = 1000
"""By then an average of 1 that shrinks by a tenth in each step is denormal."""
_LONGEST_EPOCH_S = 1.0
"""Of an epoch that a turn takes whole: a few rounds shall fit into a budget."""
_SKIPPED_SHARE = 0.15
_FEW = 5


def check_length(script: object, planned_steps: int | None) -> None:
    """Refuse a run that is too short for any turn, even if it is started again for each.

    Raises:
        TrialError: it is.
    """
    if planned_steps is not None and planned_steps < LEAST_STEPS:
        raise TrialError(
            f"`{script}` takes {planned_steps} steps, too few to compare plans. Expected: at least "
            f"{LEAST_STEPS}. Use more epochs.",
            reason="ended_early",
        )


def late_age(watched: int) -> int:
    """Return the steps after which what acts late does act, see `Technique.acts_late`.

    Args:
        watched: steps of the watched run, in whose end it was called for.
    """
    return min(watched, _LATE)


def warm_up_lengths(
    planned_steps: int | None, step_ms: float | None, age: int = 0
) -> tuple[int, ...]:
    """Return the steps of the turns that do not count, at the start of each process.

    Args:
        planned_steps: steps of the whole run, if known.
        step_ms: what a plain step takes, if known.
        age: steps that a process shall have taken before its first turn that counts, where the run
            is at least twice as long, and has steps left for a turn.
    """
    late = (age, WARM_UP[1])
    least = max(2 * age, sum(late) + LEAST_STEPS + 1)
    if age and (planned_steps is None or planned_steps >= least):
        return late
    lengths = list(WARM_UP)
    if step_ms is not None:
        longest = max(1, round(_WARM_UP_S * 1000 / step_ms))
        lengths = [min(length, longest) for length in lengths]
    if planned_steps is not None:
        left = max(1, (planned_steps - 1) // _WARM_UP_SHARE)
        first = min(lengths[0], max(1, left // 2))
        lengths = [first, min(lengths[1], left - first)]
    return tuple(length for length in lengths if length)


def short_epoch(trace: Trace) -> int | None:
    """Return the steps of an epoch that turns have to take whole, None if they need not.

    Where worker processes make the batches, they start in each epoch, or fill their queues again:
    what a step takes depends on how far it is from there, and a turn that counts a part of an epoch
    says something else each time.

    Args:
        trace: the plain run.
    """
    steps = trace.facts.steps_per_epoch
    if not steps or not any(loader.num_workers for loader in trace.facts.training_loaders):
        return None
    return steps if steps * trace.step_ms()["mean"] <= _LONGEST_EPOCH_S * 1000 else None


def is_whole(steps: int, epoch: int | None) -> bool:
    """Return whether the steps of a turn that count are a whole number of epochs.

    Args:
        steps: of the turn.
        epoch: steps of an epoch, None if that does not matter.
    """
    return epoch is not None and (steps - skipped_steps(steps)) % epoch == 0


def turn_length(
    turn_s: float,
    rounds: int,
    planned_steps: int | None,
    step_ms: float,
    warm_up: tuple[int, ...],
    epoch: int | None = None,
) -> int:
    """Return the steps of a turn.

    All turns of an arm come out of one process where that leaves them long enough; else they are
    longer, and the script is started again when it has no steps left for another.

    Args:
        turn_s: seconds that a turn should take.
        rounds: turns of each arm.
        planned_steps: steps of the whole run, if known.
        step_ms: what a plain step takes.
        warm_up: steps of the turns before them.
        epoch: steps of an epoch, if what counts shall be a whole number of epochs where that fits.
    """
    wanted = max(1, min(_LONGEST_TURN, round(turn_s * 1000 / step_ms)))
    while epoch is not None and not is_whole(wanted, epoch):
        wanted += 1
    if planned_steps is None:
        return wanted
    usable = max(1, usable_steps(planned_steps) - sum(warm_up))
    enough = max(1, min(wanted, round(_ENOUGH_S * 1000 / step_ms)))
    in_one_process = usable // rounds
    if in_one_process >= enough:
        return min(wanted, in_one_process)
    return min(wanted, max(enough, usable // 2), usable)


def usable_steps(planned_steps: int) -> int:
    """Return the steps that turns may take in one process: a gate may lie after its first one."""
    return planned_steps - 1


def skipped_steps(steps: int) -> int:
    """Return how many steps at the start of a turn do not count: caches are cold after a pause."""
    if steps <= _FEW:
        return min(1, steps - 1)
    return max(2, round(steps * _SKIPPED_SHARE))
