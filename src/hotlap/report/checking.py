"""`hotlap verify` and `hotlap check` as text in a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from hotlap.lab.statistics import figures
from hotlap.report.printable import printable
from hotlap.report.verdicts import page_of_verdict
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
    console.print(f"Applies: {_yes_or_no(checked.applies)}.")
    console.print(f"Holds: {_yes_or_no(checked.holds)}; the plan file says `{checked.promised}`.")
    if checked.speedup is None:
        console.print(f"Gains: not measured, {printable(checked.problem)}.")
    else:
        words = f"{figures(checked.speedup)}, noise floor {checked.floor:.1%}"
        console.print(f"Gains: {_yes_or_no(checked.gains)}; {words}.")
    page_of_verdict(checked.verdict, console)


def _techniques(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    for row in rows:
        console.print(f"  {row['name']} {row['state']}: {printable(row['why'])}")


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
