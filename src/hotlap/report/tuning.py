"""`hotlap tune` as text in a terminal."""

from rich.console import Console
from rich.table import Table

from hotlap.lab.statistics import Ratio, figures
from hotlap.report.estimating import size
from hotlap.report.printable import printable
from hotlap.report.tuning_words import STATES, WITHOUT_PLAN
from hotlap.report.verdicts import page_of_verdict
from hotlap.tuning.result import Tuning


def page(tuning: Tuning, console: Console, *, every: bool = False, is_typed: bool = True) -> None:
    """Print what was found, what it gives, and what it rests on.

    Args:
        tuning: what was found.
        console: where it goes.
        every: list the techniques that are not applicable here, too.
        is_typed: the user typed `hotlap tune`, and can type it again with more options.
    """
    _headline(tuning, console)
    _hints(tuning, console)
    _proven_plans(tuning, console)
    _memory(tuning, console)
    _techniques(tuning, console, every=every, is_typed=is_typed)
    if tuning.gained:
        page_of_verdict(tuning.verdict, console)
    if tuning.not_reached:
        console.print("\nNot reached within the budget:")
        for line in tuning.not_reached:
            console.print(f"  {printable(line)}")
    _protection(tuning.unprotected, console)


def _headline(tuning: Tuning, console: Console) -> None:
    console.print(f"\n{printable(tuning.script)}")
    if not tuning.gained:
        console.print(f"{WITHOUT_PLAN[tuning.outcome]}: {printable(tuning.reason)}.")
        return
    base_ms, best_ms = tuning.shown_ms
    # The ms are those of fresh processes.
    is_fresh = tuning.fresh in (None, tuning.speedup)
    steps = f": {base_ms:.2f} -> {best_ms:.2f} ms per step" if is_fresh else ""
    where = "" if is_fresh else ", switched on and off in the watched process"
    console.print(
        f"{figures(tuning.speedup)} steady{steps}{where}, the median of {tuning.speedup.pairs} "
        f"paired turns. Noise floor: {tuning.floor:.1%}."
    )
    if not is_fresh and tuning.fresh is not None:
        why = tuning.fresh_doubt or "they differ too much among themselves"
        console.print(
            f"Fresh processes confirm it by their median, {figures(tuning.fresh)}, and do not say "
            f"by how much: {why}. The watched process had taken more steps, which may become "
            "slower later in a run."
        )
    elif tuning.live is not None and tuning.fresh is not None:
        console.print(
            f"In fresh processes: {figures(tuning.fresh)}; switched on and off in the watched "
            f"process, which had taken more steps: {figures(tuning.live)}. "
            f"{_of_both(tuning.fresh, tuning.live)}"
        )
    whole = tuning.whole_run
    before, after = whole["baseline"].seconds, whole["best"].seconds
    if before is not None and after is not None:
        between = whole["baseline"].between_s
        included = "set-up and evaluation included" if between else "set-up included"
        console.print(
            f"The whole run of {tuning.planned_steps:,} steps: {before:.0f} s -> {after:.0f} s "
            f"predicted ({before / after:.2f}x), {included}"
            f"{_beside(whole['baseline'].slowed)}. Of that: {tuning.about_whole_run}."
        )
    else:
        console.print(f"The whole run: not predicted, {whole['baseline'].covers}.")
    verdict = tuning.verdict
    console.print(f"Verdict: {verdict.tier} over {verdict.horizon_steps} steps, details below.")


def _of_both(fresh: Ratio, live: Ratio) -> str:
    if fresh.low <= live.high and live.low <= fresh.high:
        return "Steps may become slower later in a run."
    return (
        "The two differ by more than their intervals: what a long run gains is not known better "
        "than that."
    )


def _beside(slowed: float) -> str:
    if slowed == 1.0:
        return ""
    beside = "beside other processes as busy as in the races"
    return f", {beside}: steps take {slowed:.1f} times as long"


def _hints(tuning: Tuning, console: Console) -> None:
    """Print what became of what a diagnosis found: the two must not contradict each other."""
    for hint in tuning.hints:
        words = "" if hint.agrees or hint.raced is None else "; the two do not agree"
        why = printable(hint.why).removesuffix(".")
        console.print(f"{why}{words}.")


def _proven_plans(tuning: Tuning, console: Console) -> None:
    if not tuning.proven_plans:
        return
    fresh = [rung.speedup == (rung.fresh or rung.speedup) for rung in tuning.proven_plans]
    title = "The fastest proven plan of each tier" + ", in fresh processes" * all(fresh)
    table = Table(title=title, title_justify="left", box=None)
    for name in ("tier", "speed-up", "plan"):
        table.add_column(name)
    for rung, is_fresh in zip(tuning.proven_plans, fresh, strict=True):
        where = "" if all(fresh) else " (fresh processes)" if is_fresh else " (one process)"
        table.add_row(rung.tier, figures(rung.speedup) + where, str(rung.plan))
    console.print()
    console.print(table)
    if all(rung.tier != "exact" for rung in tuning.proven_plans):
        console.print("No plan was proven to be exact within this budget.")
    if tuning.why_chosen:
        console.print(f"{tuning.why_chosen}.")


def _memory(tuning: Tuning, console: Console) -> None:
    """Print what each plan held in races, the last one of each."""
    last = {str(row.plan): row for row in tuning.trials if row.peak_bytes}
    if not last and not tuning.base:
        return
    limit = "" if tuning.memory is None else f", {size(tuning.memory)} allowed"
    table = Table(
        title=f"The plans tried, and their peak memory{limit}", title_justify="left", box=None
    )
    notes = [printable(row.note) for row in last.values()]
    for name in ("plan", "peak", "speed-up", *(["why not"] if any(notes) else [])):
        table.add_column(name)
    if tuning.plain_peak_bytes:
        table.add_row(tuning.plain, size(tuning.plain_peak_bytes))
    for row, note in zip(last.values(), notes, strict=True):
        # Of the chosen plan another race may count than the last one.
        ratio = tuning.fresh if row.plan == tuning.plan and tuning.fresh else row.speedup
        gain = "" if ratio is None else figures(ratio)
        why = [note] if any(notes) else []
        table.add_row(str(row.plan), size(row.peak_bytes or 0), gain, *why)
    console.print()
    if tuning.base:
        console.print(f"All plans contain {tuning.base}: without it the recipe does not fit.")
    console.print(table)


def _techniques(tuning: Tuning, console: Console, *, every: bool, is_typed: bool) -> None:
    hidden = () if every else tuning.inapplicable
    if len(hidden) == len(tuning.techniques):
        # `--only` named them, or nothing can be done here: the reasons are the result.
        hidden = ()
    table = Table(title="Techniques", title_justify="left", box=None)
    for name in ("name", "state", "why"):
        table.add_column(name)
    for row in tuning.techniques:
        if row["name"] not in hidden:
            state = STATES.get(row["state"], row["state"])
            table.add_row(row["name"], state, printable(row["why"]))
    console.print()
    if table.row_count:
        console.print(table)
    if hidden:
        plural = "s are" if len(hidden) > 1 else " is"
        words = f"{len(hidden)} technique{plural} not applicable to this script on this host"
        if is_typed:
            words += (
                "; the same command with `--all` lists them with the reasons. That measures "
                "nothing again, unless the result is undecided"
            )
        console.print(f"{words}.")


def _protection(unprotected: tuple[str, ...], console: Console) -> None:
    if unprotected:
        console.print("\nTrials could still have changed:")
        for line in unprotected:
            console.print(f"  {printable(line)}")
