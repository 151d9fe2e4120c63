"""Puts a plain script's run into one that was just built, and says what was restored."""

from collections.abc import Callable

from hotlap.checkpoint.foreign import fit_to_model
from hotlap.checkpoint.foreign_run import ForeignRun
from hotlap.engine.build import BuiltRun
from hotlap.engine.continuing.optimizer import NamedStates, kept_state, load_states, name_states
from hotlap.engine.continuing.position import Counts, find_position
from hotlap.engine.continuing.schedule import (
    advance_schedule,
    check_has_schedule,
    check_schedule,
    load_schedule,
)
from hotlap.engine.state.position import Position
from hotlap.engine.state.weights import load_weights
from hotlap.errors import HotlapError, UsageError


def continue_run(built: BuiltRun, run: ForeignRun, notice: Callable[[str], None]) -> Position:
    """Put a run that was just built where a plain script's run was.

    Args:
        built: the run.
        run: what the script saved.
        notice: called with one line for each part, and one for what is not restored.

    Raises:
        UsageError: the file is of another task, or does not say how far its run was.
    """
    try:
        return _continue_run(built, run, notice)
    except HotlapError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        # What was loaded half is thrown away with what it was loaded into.
        raise UsageError(
            f"'{run.path}' cannot be continued: {type(e).__name__}: {str(e)[:200]}. Expected: "
            "state dicts that fit the recipe's model, optimizer and scheduler. Use the script's "
            "model, optimizer and scheduler in the recipe, or use --weights instead of --continue "
            "to start a new run from the weights."
        ) from e


def _continue_run(built: BuiltRun, run: ForeignRun, notice: Callable[[str], None]) -> Position:
    _check_sharing(built)
    check_has_schedule(built, run)
    weights = fit_to_model(run.weights, built.model.state_dict(), run.path)
    named = name_states(built, run, weights)
    check_schedule(built, run)
    last_epoch = None if run.scheduler is None else run.scheduler.get("last_epoch")
    counts = Counts(
        epoch=run.epoch,
        step=run.step,
        updates=named.updates,
        last_epoch=last_epoch if type(last_epoch) is int else None,
    )
    position, why = find_position(counts, built.task, run.epochs_done, run.path)
    _check_state(built, run, named, position)
    if run.scheduler is None:
        advance_schedule(built, position)
    load_states(built, run, named, weights, position.step)
    load_weights(built, weights)
    schedule = load_schedule(built, run, position)
    unknown = "" if kept_state(built) is not None else "; state of this class cannot be verified"
    said = "" if run.epoch is None else f"from '{run.keys['epoch']}' = {run.epoch}, "
    lines = [
        f"continuing from '{run.path}', step {position.step}",
        f"model: from '{run.keys['model']}', {len(weights)} tensors",
        f"optimizer: from '{run.keys['optimizer']}', {named.parameters} parameters of "
        f"{type(built.optimizer).__name__}, {named.with_state} with state; {named.matched}"
        f"{unknown}",
        f"scheduler: {schedule}; {_learning_rates(built, run)}",
        f"epoch: {said}{why}",
        _not_restored(built, run, position),
    ]
    for line in lines:
        notice(line)
    return position


def _check_sharing(built: BuiltRun) -> None:
    if built.sharding is not None:
        raise UsageError(
            "--continue cannot be used with `sharding` in the plan. To start a new run from the "
            "weights, use --weights instead of --continue. To keep the optimizer's state, remove "
            "[techniques.sharding] from the plan and train with --run-dir until a checkpoint is "
            "saved there; then add it again, and use --resume auto with the same --run-dir."
        )


def _check_state(built: BuiltRun, run: ForeignRun, named: NamedStates, position: Position) -> None:
    """Refuse an optimizer that has been trained with and has no state."""
    if named.with_state or not position.step or not kept_state(built):
        return
    raise UsageError(
        f"'{run.keys['optimizer']}' in '{run.path}' holds no state for any of {named.parameters} "
        f"parameters, although {position.step} steps were done. Use --weights instead of "
        "--continue to start a new run from the weights; or, if you can run the script again, save "
        "`optimizer.state_dict()` after its last step."
    )


def _learning_rates(built: BuiltRun, run: ForeignRun) -> str:
    now = [float(group["lr"]) for group in built.optimizer.param_groups]
    saved = [float(group["lr"]) for group in run.optimizer["param_groups"]]
    text = f"learning rate {', '.join(f'{rate:g}' for rate in now)}"
    if run.scheduler is None and saved != now:
        text += f", although the file has {', '.join(f'{rate:g}' for rate in saved)}"
    return text


def _not_restored(built: BuiltRun, run: ForeignRun, position: Position) -> str:
    lost = ["RNG state", f"order of samples (the recipe's from epoch {position.epoch + 1} on)"]
    if built.step.target.scaler is not None:
        lost.append("GradScaler")
    unused = ", ".join(map(repr, run.unused[:12]))
    return f"not restored: {', '.join(lost)}" + (f"; unused keys: {unused}" if unused else "")
