"""The scheduler of a plain script's run: checked against the recipe's, and loaded."""

import warnings
from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hotlap.checkpoint.codec import encode
from hotlap.checkpoint.foreign_run import ForeignRun
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.equality import is_same
from hotlap.engine.state.fitting import wrong_table
from hotlap.engine.state.position import Position
from hotlap.errors import UsageError

_MOVING = (
    "last_epoch",
    "_step_count",
    "_last_lr",
    "_get_lr_called_within_step",
    "_is_initial",
    "verbose",
    "best",
    "num_bad_epochs",
    "cooldown_counter",
    "T_cur",
    "T_i",
)
"""What changes while torch's schedulers step, or from one version of torch to the next."""
_RATES = "base_lrs"
"""Key of the learning rates of the optimizer's groups that a scheduler begins with."""
_PARTS = "_schedulers"
"""Key of a scheduler that is made of others."""


def check_has_schedule(built: BuiltRun, run: ForeignRun) -> None:
    """Raise if a file has a scheduler and the recipe has none, or lacks one that is needed.

    Raises:
        UsageError: that is so.
    """
    own = built.scheduler
    if run.scheduler is None and isinstance(own, ReduceLROnPlateau):
        raise UsageError(
            f"no scheduler was taken from '{run.path}', but the recipe's ReduceLROnPlateau needs "
            "the state with its measurements of earlier epochs. Pass --keys scheduler=KEY with "
            "the key of that state, or use another schedule in the recipe."
        )
    if run.scheduler is not None and own is None:
        raise UsageError(
            f"'{run.path}' has a scheduler under '{run.keys['scheduler']}', but the recipe has no "
            "schedule. Add the script's scheduler to the recipe as `schedule`, or pass --keys "
            "scheduler=none to continue at a constant learning rate."
        )


def check_schedule(built: BuiltRun, run: ForeignRun) -> None:
    """Raise if the scheduler in a file is not the recipe's.

    Raises:
        UsageError: they differ; the message says in what.
    """
    own = built.scheduler
    if run.scheduler is None:
        return
    is_known = any(each.__module__.startswith("torch.") for each in type(own).__mro__[:2])
    wrong = _difference(own.state_dict(), run.scheduler, type(own).__name__, is_known)
    wrong = wrong or wrong_table(
        "scheduler", own, encode(_merged(own.state_dict(), run.scheduler), "the scheduler")
    )
    if wrong is not None:
        raise UsageError(
            f"the scheduler under '{run.keys['scheduler']}' in '{run.path}' is not the recipe's: "
            f"{wrong}. Use {_remedy(wrong)}"
        )


def _remedy(wrong: str) -> str:
    if f"'{_RATES}' is" in wrong:
        return (
            "the lr with which the script's optimizer began (max_lr, for OneCycleLR) in the "
            "recipe, not that of its last epoch: a schedule begins with it."
        )
    return (
        "the same schedule in the recipe, or pass --keys scheduler=none to advance the recipe's "
        "schedule to the epoch at which the file was saved."
    )


def advance_schedule(built: BuiltRun, position: Position) -> None:
    """Let a scheduler that was just made, if there is one, take all steps up to a position."""
    if built.scheduler is not None:
        for _ in range(_steps_at(built, position)):
            _step(built.scheduler)


def load_schedule(built: BuiltRun, run: ForeignRun, position: Position) -> str:
    """Load the scheduler of a file, if it has one, and return where the scheduler is from.

    A scheduler that was saved right before its step for the last epoch takes that step: so do
    Lightning's.

    Args:
        built: its optimizer has the learning rates of the file.
        run: what the file holds.
        position: where the run continues.
    """
    own, at = built.scheduler, _steps_at(built, position)
    if own is None:
        return "none"
    kind = type(own).__name__
    if run.scheduler is None:
        return f"not from the file; the recipe's {kind} was set to {built.task.schedule_per} {at}"
    own.load_state_dict(_merged(own.state_dict(), run.scheduler))
    last = getattr(own, "last_epoch", None)
    said = f"from '{run.keys['scheduler']}', {kind}, last_epoch {last}"
    if last == at or not isinstance(last, int):
        return said
    if last == at - 1 and not isinstance(own, ReduceLROnPlateau):
        _step(own)
        return f"{said}; it was saved before its last step, which is taken now"
    return f"{said}, where {at} is expected; the learning rate follows last_epoch"


def _steps_at(built: BuiltRun, position: Position) -> int:
    """Return the steps that a scheduler has taken at a position."""
    return position.step if built.task.schedule_per == "step" else position.epoch


def _step(scheduler: Any) -> None:
    with warnings.catch_warnings():
        # No update of this process comes before it.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        scheduler.step()


def _merged(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with all keys of this version of torch, and no others."""
    merged = {key: theirs.get(key, value) for key, value in own.items()}
    if isinstance(own.get(_PARTS), list | tuple):
        pairs = zip(own[_PARTS], theirs[_PARTS], strict=True)
        merged[_PARTS] = type(own[_PARTS])(_merged(mine, other) for mine, other in pairs)
    return merged


def _difference(
    own: Mapping[str, Any], theirs: Mapping[str, Any], kind: str, is_known: bool
) -> str | None:
    """Return in what the scheduler of a file is not the recipe's.

    Args:
        own: the state of the recipe's.
        theirs: the one in the file.
        kind: class of the recipe's.
        is_known: False if nothing is known of what changes while it steps.
    """
    lacks, has = _settings(own) - _settings(theirs), _settings(theirs) - _settings(own)
    if lacks or has:
        words = {"has": has, "lacks": lacks}
        differs = [f"{verb} {', '.join(sorted(keys))}" for verb, keys in words.items() if keys]
        return f"it {' and '.join(differs)}, unlike the recipe's {kind}"
    fixed = (own.keys() & theirs.keys()) - {*_MOVING} if is_known else {_RATES} & theirs.keys()
    for key in sorted(fixed):
        mine, given = own[key], theirs[key]
        if key == _PARTS:
            if not isinstance(given, list | tuple) or len(given) != len(mine):
                return f"it is not made of {len(mine)} schedulers, unlike the recipe's {kind}"
            parts = (_difference(*pair, kind, True) for pair in zip(mine, given, strict=True))
            wrong = next(filter(None, parts), None)
            if wrong is not None:
                return wrong
        elif not is_same(mine, given):
            return f"'{key}' is {given!r}, but {mine!r} in the recipe's {kind}"
    return None


def _settings(state: Mapping[str, Any]) -> set[str]:
    """Return the keys that every version of torch gives a scheduler of one class."""
    found = {key for key in state if key not in _MOVING and not key.startswith("hotlap_")}
    return {key for key in found if key == _PARTS or not key.startswith("_")}
