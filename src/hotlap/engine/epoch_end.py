"""The end of an epoch: measures and evaluates it, steps its schedule, checks the loss."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from hotlap.engine.build import BuiltRun
from hotlap.engine.clock import EpochClock
from hotlap.engine.evaluate import Stopped, evaluate
from hotlap.engine.evaluation_guard import is_disturbed, kept_random_states
from hotlap.engine.loss_errors import raise_explained
from hotlap.engine.state.position import Position
from hotlap.engine.state.saving import Saver
from hotlap.engine.steps import StepDone, waits_for_measure
from hotlap.engine.training_report import EpochDone
from hotlap.errors import RunError, StorageError, UsageError
from hotlap.task import Task

_SCALES = 40
"""Steps after which a scaler has halved its scale down to nothing."""


def check_learning(built: BuiltRun, step: StepDone, epoch: EpochDone) -> None:
    """Raise once no update of the whole run was taken; a scaler may need some to find its scale."""
    may_scale = built.step.target.scaler is not None and step.number <= _SCALES
    if math.isnan(epoch.loss) and epoch.skipped_steps == step.number and not may_scale:
        raise RunError(
            f"all {step.number} updates were skipped: the loss or the gradient norm was not finite "
            "in any step. Check the initial weights and the data for NaN and infinite values, and "
            "lower the learning rate; if loss() returns (sum, count), return a count above 0."
        )


def ends_at(task: Task, position: Position, where: Path) -> bool:
    """True if nothing is left to train; raise if the run has gone beyond the task."""
    if task.total_steps is None:
        done, total, unit = position.epoch, task.epochs or 0, "epochs"
    else:
        done, total, unit = position.step, task.total_steps, "steps"
    if done > total:
        given = "steps" if task.epochs is None else "epochs"
        least = done if given == unit else -(-done * (task.epochs or 0) // max(total, 1))
        raise UsageError(
            f"'{where}' was saved after {done} {unit}, but the task has only {total}. Set "
            f"`{given}` in the task to at least {least}, or resume from an earlier checkpoint."
        )
    return done == total


def _steps_left(task: Task, step: StepDone, in_this_epoch: int) -> int:
    total = task.total_steps
    if total is not None:
        return total - step.number
    return ((task.epochs or 0) - step.epoch) * in_this_epoch


def try_measures(built: BuiltRun, *, is_finished: bool) -> None:
    """Measure one held-out batch: a mistake shows before the first step, not after an epoch.

    Args:
        built: the run.
        is_finished: no step comes.

    Raises:
        UsageError: the schedule follows a measure that evaluation does not give.
    """
    try:
        found = evaluate(built, batches=1, is_trial=True)
    except (IndexError, RuntimeError) as error:
        raise_explained(error)
        raise
    if not is_finished and waits_for_measure(built):
        _check_metric(found)


def report_epoch(
    progress: Callable[[EpochDone], None],
    done: EpochDone,
    built: BuiltRun,
    step: StepDone,
    clock: EpochClock,
    saver: Saver | None,
) -> None:
    """Report an epoch to the caller's function, and save what was trained if that raises.

    Args:
        progress: the function.
        done: the epoch; a schedule that waits for its measure has taken its step.
        built: the run; what is drawn meanwhile, by another training say, it does not notice.
        step: the last one that was done.
        clock: of the epoch, if it goes on.
        saver: None if nothing is saved.
    """
    try:
        with kept_random_states():
            progress(done)
    except Exception as error:
        _save_trained(built, step, clock, saver, error, "progress()")
        raise


def measure_epoch(
    built: BuiltRun,
    step: StepDone,
    clock: EpochClock,
    saver: Saver | None,
    stop: Callable[[], bool],
) -> EpochDone:
    """Measure an epoch, or the part of it that was trained, and return its report.

    Args:
        built: the run; a schedule that waits for the measure takes its step.
        step: the last one that was done.
        clock: of the epoch.
        saver: saves what was trained if evaluation raises; None if nothing is saved.
        stop: asked while held-out samples are looked at.

    Raises:
        Stopped: `stop` said so.
        UsageError: the schedule follows a measure that evaluation does not give.
    """
    seconds, loss = clock.read()
    if waits_for_measure(built):
        # Without its measure the schedule would go on with another rate.
        stop = _answer_no
    held_out: Mapping[str, float] = {}
    if built.held_out is not None:
        try:
            held_out = evaluate(built, stop=stop)
        except Stopped:
            raise
        except Exception as error:
            # Without its measure the schedule would go on from an earlier step.
            if not waits_for_measure(built):
                _save_trained(built, step, clock, saver, error, "evaluation")
            raise
    if waits_for_measure(built) and step.ends_epoch:
        built.scheduler.step(_scheduler_metric(held_out, loss))
    return EpochDone(
        epoch=step.epoch,
        steps=clock.steps,
        seconds=seconds,
        samples_per_s=clock.timed / seconds,
        loss=loss,
        held_out=held_out,
        left_s=_steps_left(built.task, step, clock.steps) * seconds / clock.timed_steps,
        peak_memory_bytes=built.hardware.peak_bytes(),
        skipped_steps=built.step.skipped,
        peak_host_memory_bytes=built.hardware.host_peak_bytes(),
        padding=built.source.padding,
    )


def _answer_no() -> bool:
    return False


def _save_trained(
    built: BuiltRun,
    step: StepDone,
    clock: EpochClock,
    saver: Saver | None,
    error: Exception,
    what: str,
) -> None:
    """Save what was trained before something else raised: it is not lost with it."""
    if saver is None or saver.reduce.rank:
        return
    if is_disturbed(built.model):
        error.add_note(
            f"hotlap: {what} raised this while the model's state was being restored, so this step "
            "is not saved; the last saved checkpoint is intact"
        )
        return
    try:
        # Other ranks may still be evaluating.
        kept = EpochClock(built.hardware) if step.ends_epoch else clock
        saver.save_alone(built, step.after, kept.to_json())
    except StorageError as full:
        error.add_note(f"hotlap: the trained state could not be saved either: {full}")
    else:
        where = saver.step_folder(step.after)
        error.add_note(f"hotlap: {what} raised this; the trained state is saved in '{where}'")


def _scheduler_metric(held_out: Mapping[str, float], loss: float) -> float:
    """Return what a schedule that waits for a measure is given."""
    _check_metric(held_out)
    return held_out.get("loss", loss)


def _check_metric(held_out: Mapping[str, float]) -> None:
    if held_out and "loss" not in held_out:
        raise UsageError(
            "the schedule ReduceLROnPlateau needs the held-out loss, but evaluate() returned only "
            f"{sorted(held_out)}. Return a `loss` from evaluate() as well, as in {{'loss': (sum, "
            "count)}, or use another schedule in the task."
        )
