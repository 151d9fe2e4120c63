"""What `hotlap search` shows: a table while it runs, and what it found."""

import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hotlap.errors import UnknownName, unknown_name
from hotlap.report.printable import printable
from hotlap.report.too_large import held_text, none_fits_text

COLUMNS = ("trial", "state", "step", "value", "seconds", "memory", "parameters", "seeds")
DEFAULT_COLUMNS = ("trial", "state", "step", "value", "parameters")
_ROWS = 12


def columns_given(text: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that `--columns` names.

    Args:
        text: names with commas between them; None for the usual ones.
        names: of the parameters, each of which may be a column of its own.

    Raises:
        UnknownName: there is no such column.
    """
    if text is None:
        return DEFAULT_COLUMNS
    columns = tuple(each.strip() for each in text.split(",") if each.strip())
    for column in columns:
        if column not in (*COLUMNS, *names):
            raise UnknownName(unknown_name(column, (*COLUMNS, *names), "--columns: column"))
    return columns or DEFAULT_COLUMNS


def value_text(value: Any) -> str:
    """Return a value in few characters; None is one that there is not."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def parameters_text(values: Any) -> str:
    """Return the values of a trial in one line."""
    return " ".join(f"{printable(name)}={value_text(value)}" for name, value in values.items())


def outcome_line(state: Any, job: Any) -> str:
    """Return the line on the end of a job, for logs."""
    trial = state.trials[job.trial]
    outcome = trial.repeats.get(job.repeat) if job.repeat else trial.outcomes.get(job.rung)
    what = f"trial {job.trial}" + (f", seed +{job.repeat}" if job.repeat else "")
    if outcome is None:
        return f"{what}: to {_end_of(state.spec, job.rung)}, {parameters_text(trial.values)}"
    if outcome.value is None:
        return f"{what}: {outcome.state}: {printable(outcome.error)}"
    names = [each.name for each in state.spec.objectives]
    values = zip(names, state.values_of(outcome) or (), strict=False)
    shown = ", ".join(f"{printable(name)} {value_text(value)}" for name, value in values)
    if state.is_too_large(outcome):
        shown += f", too large with {_memory_text(outcome)},"
    return f"{what}: {shown} at step {outcome.step:,}, {parameters_text(trial.values)}"


def _end_of(spec: Any, rung: int) -> str:
    """Return in words where a trial is compared."""
    if not spec.is_own_length:
        return f"step {spec.rungs[rung]:,}"
    share = spec.rungs[rung] / spec.rungs[-1]
    return "its end" if share == 1 else f"{100 * share:.0f} % of its steps"


class Remaining:
    """Estimates the seconds that a search still takes."""

    def __init__(self, state: Any) -> None:
        self._begun = time.monotonic()
        self._done = _steps_done(state)

    def seconds(self, state: Any) -> float | None:
        """Return the estimate, None before the first steps were taken."""
        done = _steps_done(state)
        if done <= self._done:
            return None
        passed = time.monotonic() - self._begun
        left = max(0, _steps_expected(state) - done)
        return left * passed / (done - self._done)


def _steps_done(state: Any) -> int:
    repeats = sum(each.step for trial in state.trials for each in trial.repeats.values())
    return state.steps + repeats


def _steps_expected(state: Any) -> int:
    """Return the steps of the whole search, as halving would take them."""
    spec, before, total = state.spec, 0, 0.0
    for number, rung in enumerate(spec.rungs):
        total += max(1.0, spec.trials / spec.reduction**number) * (rung - before)
        before = rung
    length = _length(state)
    # Asynchronous promotions are more than those of a whole rung would be.
    least = state.steps / length + 0.5 * (spec.trials - len(state.trials)) * spec.rungs[0]
    return round(length * (max(total, least) + 3 * spec.seeds * spec.rungs[-1]))


def _length(state: Any) -> float:
    """Return how many times as long as the recipe's own run the trials are, as far as known."""
    known = [trial.last.whole_steps for trial in state.trials if trial.last is not None]
    steps = [each for each in known if each is not None] if state.spec.is_own_length else []
    return fmean(steps) / state.spec.rungs[-1] if steps else 1.0


def live_table(state: Any, columns: Sequence[str], left_s: float | None) -> Group:
    """Return the table that is shown while a search runs: the best trials, then those running."""
    left = "" if left_s is None else f", about {_duration(left_s)} left"
    ended = sum(trial.last is not None for trial in state.trials)
    title = (
        f"{ended} of {state.spec.trials} trials, {len(state.open)} running, "
        f"{state.steps:,} steps{left}"
    )
    return Group(Text(title), _table(state, columns))


def _table(state: Any, columns: Sequence[str]) -> Table:
    table = Table(*(printable(each) for each in columns), box=None)
    running = {job.trial for job in state.open}
    valued = [trial for trial in state.trials if trial.last is not None and not trial.failed]
    valued = _best_first(state, valued)
    rest = [trial for trial in state.trials if trial.number in running and trial not in valued]
    for trial in (valued[:_ROWS] + rest)[: _ROWS + len(rest)]:
        table.add_row(*(_cell(state, trial, each, running) for each in columns))
    return table


def _best_first(state: Any, trials: Sequence[Any]) -> list[Any]:
    """Return trials by the rung that they have come to; those that are too large come last."""
    found = []
    for rung in reversed(range(len(state.spec.rungs))):
        found += state.ranked(rung, [trial for trial in trials if trial.last.job.rung == rung])
    numbers = {trial.number for trial in found}
    return found + [trial for trial in trials if trial.number not in numbers]


def _cell(state: Any, trial: Any, column: str, running: set[int]) -> str:
    last = trial.last
    if column in trial.values:
        return value_text(trial.values[column])
    if column == "trial":
        is_own = trial.number == 0 and state.spec.defaults is not None
        return f"{trial.number} (recipe's own)" if is_own else str(trial.number)
    if column == "parameters":
        return parameters_text(trial.values)
    if column == "state":
        return "running" if trial.number in running else _end_text(state, last)
    if column == "seeds":
        return " ".join(value_text(o.value) for _, o in sorted(trial.repeats.items()))
    if last is None:
        return ""
    shown = {
        "step": f"{last.step:,}",
        "value": " / ".join(map(value_text, state.values_of(last) or ())),
        "seconds": f"{last.seconds:.1f}",
        "memory": _memory_text(last),
    }
    return shown[column]


def _end_text(state: Any, last: Any) -> str:
    """Return in words how far a trial came; empty if it has no outcome."""
    if last is None:
        return ""
    if state.is_too_large(last):
        return "too large"
    if last.is_over:
        return "whole"
    # With --max-steps a trial may end before its own task does.
    at_end = last.job.rung == len(state.spec.rungs) - 1
    return f"{last.step:,} steps" if at_end else "stopped"


def _memory_text(outcome: Any) -> str:
    return f"{outcome.memory_bytes / 2**20:,.0f} MiB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def page(result: Any, columns: Sequence[str], console: Console, folder: Any) -> None:
    """Print what a search found, which is kept in a folder."""
    state, best = result.state, result.best
    table = _table(state, columns)
    if table.row_count:
        console.print(table)
        console.print()
    if best is None:
        console.print(_without_best(result))
        _print_failures(result, console, folder)
        return
    share = 100 * state.steps / max(1, result.full_steps)
    console.print(
        f"{state.steps:,} steps, {share:.0f} % of those of the same trials without stopping; "
        f"{result.stopped_early} of {len(state.trials)} trials were stopped early"
        + (f"; {result.repeat_steps:,} more steps for other seeds" if result.repeat_steps else "")
    )
    if result.too_large:
        console.print(f"{_held(held_text, result)}, and are no candidates")
    _print_failures(result, console, folder)
    name = state.spec.objective.name
    seeds = result.values_of(best)
    over = f"; over {len(seeds)} other seeds {_mean_text(seeds)}" if seeds else ""
    console.print(
        f"best{' in ' + printable(name) if result.front else ''}: trial {best.number}, "
        f"{printable(name)} {value_text(best.last.value)}{over}"
    )
    console.print(_comparison_text(result))
    if result.front:
        _print_front(result, console)
        return
    console.print("\nTo train it:")
    console.print(f"  {printable(result.command(best))}", soft_wrap=True)


def _without_best(result: Any) -> str:
    """Return why there is no best configuration."""
    if result.too_large:
        return _held(none_fits_text, result)
    return "No trial was trained to the end, so there is no best configuration."


def _held(text: Callable[[Sequence[int], int, int], str], result: Any) -> str:
    """Return a text on the trials that held too much memory."""
    held = [trial.last.memory_bytes for trial in result.too_large]
    return text(held, result.state.spec.memory_bytes, len(result.state.trials))


def _print_front(result: Any, console: Console) -> None:
    """Print the trials of which none is better than another in everything."""
    objectives = result.state.spec.objectives
    names = [printable(each.name) for each in objectives]
    console.print(f"\nNone of these is better than another in {' and '.join(names)}:")
    table = Table("trial", *names, "parameters", box=None)
    for trial in result.front:
        values = map(value_text, result.objectives_of(trial).values())
        table.add_row(str(trial.number), *values, parameters_text(trial.values))
    console.print(table)
    for trial in result.front:
        verdicts = [
            f"{name} {found.verdict} ({found.gain:+.4g})"
            for axis, name in enumerate(names)
            if (found := result.compared(trial, axis)) is not None
        ]
        if verdicts:
            console.print(
                f"trial {trial.number} against the recipe's own values, over "
                f"{result.state.spec.seeds} seeds: {', '.join(verdicts)}"
            )
    console.print("\nTo train one of them:")
    for trial in result.front:
        console.print(f"  {printable(result.command(trial))}", soft_wrap=True)


def _print_failures(result: Any, console: Console, folder: Any) -> None:
    for state, count in result.failures.items():
        first = next(t for t in result.state.trials if t.failed and t.last.state == state)
        trials = "1 trial" if count == 1 else f"{count} trials"
        log = f"{folder}/trials/{first.number:04}/log.txt"
        console.print(
            f"{trials} ended with {state}; trial {first.number}: {printable(first.last.error)} "
            f"({printable(log)})"
        )


def _mean_text(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "it failed with each of them"
    words = f"{value_text(sum(known) / len(known))} ({value_text(min(known))} to "
    words += f"{value_text(max(known))})"
    failed = len(values) - len(known)
    return f"{words}, and {failed} of {len(values)} seeds failed" if failed else words


def _comparison_text(result: Any) -> str:
    found, state = result.comparison, result.state
    if state.spec.defaults is None:
        return "The recipe has no values of its own to compare with."
    if result.best is state.trials[0]:
        return "The recipe's own values are the best ones that were found."
    if found is None:
        if state.trials[0].failed:
            return f"The recipe's own values failed: {printable(state.trials[0].last.error)}"
        return "It was not compared with the recipe's own values over other seeds."
    interval = f"90 % interval {found.low:+.4g} to {found.high:+.4g}"
    figures = (
        f"by {found.gain:+.4g} ({interval}, {found.seeds} seeds; its own: {_mean_text(found.own)})"
    )
    if found.verdict == "same":
        return (
            f"Same as the recipe's own values, within the noise of seeds: it differs {figures}. "
            "More --seeds would show a smaller gain."
        )
    return f"It is {found.verdict} than the recipe's own values {figures}."
