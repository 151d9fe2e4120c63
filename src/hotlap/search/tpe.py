"""Values proposed by Optuna's TPE sampler, from the search's own journal. Optuna is optional."""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from hotlap.errors import UsageError
from hotlap.search.space import (
    Choice,
    Distribution,
    IntRange,
    LogUniform,
    PowerOfTwo,
    Uniform,
    Value,
)
from hotlap.search.state import DONE, SearchState, TrialState

_SEEDS = 100_003
"""Distance of the seeds of two searches, more than a search has trials."""
_SEEDS_END = 2**32
"""NumPy takes seeds below this."""


def load_optuna() -> Any:
    """Return the package.

    Raises:
        UsageError: it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        raise UsageError(
            "--method tpe needs the package optuna, which is not installed. Install it with `pip "
            "install optuna` (the extra `search`), or use --method asha, hyperband, random or grid."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def suggest(distributions: Mapping[str, Distribution], state: SearchState) -> dict[str, Value]:
    """Return the values of the next trial: the same for the same history, whoever asks."""
    optuna = load_optuna()
    spaces = {name: _of_optuna(optuna, each) for name, each in distributions.items()}
    seed = (state.spec.seed * _SEEDS + len(state.trials)) % _SEEDS_END
    with warnings.catch_warnings():
        # `constant_liar` is marked as experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    directions = ["minimize"] * len(state.spec.objectives)
    study = optuna.create_study(sampler=sampler, directions=directions)
    for trial in _history(optuna, state, distributions, spaces):
        study.add_trial(trial)
    asked = study.ask(spaces)
    return {name: _to_value(distributions[name], asked.params[name]) for name in distributions}


def _history(
    optuna: Any,
    state: SearchState,
    distributions: Mapping[str, Distribution],
    spaces: Mapping[str, Any],
) -> list[Any]:
    """Return the trials as Optuna's; those outside of the space are unknown to it."""
    values = {
        trial.number: ranks
        for trial in state.trials
        if (ranks := _ranks_of(state, trial)) is not None
    }
    worst = [max(column) for column in zip(*values.values(), strict=True)] or None
    found = []
    for trial in state.trials:
        if not all(_holds(each, trial.values[name]) for name, each in distributions.items()):
            continue
        value = values.get(trial.number)
        if value is None and trial.last is not None:
            # One that failed is as bad as the worst: others like it are to be avoided.
            value = worst
        running = trial.last is None
        if value is None and not running:
            continue
        kinds = optuna.trial.TrialState
        found.append(
            optuna.trial.create_trial(
                state=kinds.RUNNING if running else kinds.COMPLETE,
                values=None if running else value,
                params={
                    name: _from_value(distributions[name], trial.values[name]) for name in spaces
                },
                distributions=dict(spaces),
            )
        )
    return found


def _ranks_of(state: SearchState, trial: TrialState) -> tuple[float, ...] | None:
    last = trial.last
    return None if last is None or last.state != DONE else state.ranks_at(trial, last.job.rung)


def _of_optuna(optuna: Any, each: Distribution) -> Any:
    kinds = optuna.distributions
    if isinstance(each, Uniform | LogUniform):
        return kinds.FloatDistribution(each.low, each.high, log=isinstance(each, LogUniform))
    if isinstance(each, IntRange):
        return kinds.IntDistribution(each.low, each.high)
    if isinstance(each, PowerOfTwo):
        return kinds.IntDistribution(each.low.bit_length() - 1, each.high.bit_length() - 1)
    return kinds.CategoricalDistribution(each.grid(1))


def _holds(each: Distribution, value: Value | None) -> bool:
    """True if a distribution has that value."""
    if isinstance(each, Uniform | LogUniform):
        return isinstance(value, int | float) and each.low <= value <= each.high
    if isinstance(each, IntRange):
        return type(value) is int and each.low <= value <= each.high
    return value in each.grid(1)


def _from_value(each: Distribution, value: Value | None) -> Value | None:
    return value.bit_length() - 1 if isinstance(each, PowerOfTwo) and type(value) is int else value


def _to_value(each: Distribution, asked: Any) -> Value:
    """Return a value as a command line gives it, with few digits."""
    if isinstance(each, PowerOfTwo):
        return 1 << asked
    if isinstance(each, Uniform | LogUniform):
        return each.round(asked)
    return asked if isinstance(each, Choice) else int(asked)
