"""The page of `hotlap verify` and `hotlap check`."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from hotlap.lab.statistics import figures
from hotlap.lab.verdict import Verdict
from hotlap.report.terminal import printable
from hotlap.tuning.checking import PlanCheck, PlanComparison


def page_of_compared(compared: PlanComparison, console: Console) -> None:
    """Print whether the second plan learns what the first one does."""
    first, second = compared.plans
    console.print(f"\n{printable(compared.script)}")
    console.print(f"{second or 'plain'} against {first or 'plain'}")
    _techniques(compared.techniques, console)
    page_of_verdict(compared.verdict, console)


def page_of_checked(checked: PlanCheck, console: Console) -> None:
    """Print whether a plan still applies, holds and gains."""
    console.print(f"\n{printable(checked.script)}, plan {checked.plan.hash}: {checked.plan}")
    _techniques(checked.techniques, console)
    console.print(f"Applies: {_yes(checked.applies)}.")
    console.print(f"Holds: {_yes(checked.holds)}; the plan file says `{checked.promised}`.")
    if checked.speedup is None:
        console.print(f"Gains: not measured, {printable(checked.problem)}.")
    else:
        words = f"{figures(checked.speedup)}, noise floor {checked.floor:.1%}"
        console.print(f"Gains: {_yes(checked.gains)}; {words}.")
    page_of_verdict(checked.verdict, console)


def page_of_verdict(verdict: Verdict, console: Console) -> None:
    """Print a verdict with each of its checks, what it covers and what it says nothing of."""
    console.print(f"\nVerdict: {verdict.tier} over {verdict.horizon_steps} steps.")
    for check in verdict.checks:
        state = check.state.replace("_", " ")
        console.print(f"  {check.name} {state}: {printable(check.evidence)}")
    covered = [f"{name} {value}" for name, value in verdict.covers.items() if value is not None]
    console.print(f"Covers: {', '.join(covered)}.")
    if verdict.limits:
        console.print("The smallest changes that would have been detected:")
        for limit in verdict.limits:
            console.print(f"  {limit}")
    console.print("Not checked:")
    for line in verdict.not_checked:
        console.print(f"  {printable(line)}")


def _techniques(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    for row in rows:
        console.print(f"  {row['name']} {row['state']}: {printable(row['why'])}")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
