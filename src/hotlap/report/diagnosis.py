"""A diagnosis as a page of text."""

from rich.console import Console
from rich.table import Table

from hotlap.diagnose.causes import Diagnosis
from hotlap.report.terminal import printable

_BAR = 40


def page(diagnosis: Diagnosis, console: Console) -> None:
    """Print where a step's time goes, and what each cause costs."""
    trace = diagnosis.trace
    step = trace.step_ms()
    console.print(f"\n{printable(diagnosis.script)}")
    console.print(
        f"A step takes {step['mean']:.2f} ms in the mean (median {step['median']:.2f}, 5 to 95 %: "
        f"{step['low']:.2f} to {step['high']:.2f}, {step['n']} steps"
        + (", whole epochs)." if trace.covers_whole_periods else "; no whole epoch was seen).")
    )
    _phases(diagnosis, console)
    _findings(diagnosis, console)
    anchor = trace.anchor
    console.print(f"\nSteps were recognised by {anchor.kind} (confidence {anchor.confidence}).")
    if diagnosis.unprotected:
        console.print("Trials could still have changed: " + "; ".join(diagnosis.unprotected))


def _phases(diagnosis: Diagnosis, console: Console) -> None:
    means = diagnosis.trace.phase_means()
    total = sum(means.values())
    table = Table(box=None, show_header=False)
    for _ in range(4):
        table.add_column(justify="left")
    for name, ms in means.items():
        share = ms / total if total else 0.0
        table.add_row(name, f"{ms:8.3f} ms", f"{share:5.1%}", "#" * round(share * _BAR))
    console.print(table)


def _findings(diagnosis: Diagnosis, console: Console) -> None:
    if not diagnosis.findings:
        console.print("\nNothing was found that costs more than identical runs differ.")
    for number, finding in enumerate(diagnosis.findings, 1):
        console.print(
            f"\n{number}. {finding.rule} at {printable(finding.where)}: costs "
            f"{finding.cost_ms:.2f} ms a step (at most {finding.at_most_ms:.2f})"
        )
        console.print(f"   {printable(finding.evidence)}.")
        console.print(f"   Remedy: {printable(finding.remedy)}. Numerics: {finding.numerics}.")
    for row in diagnosis.opportunities:
        options = ", ".join(f"{key} = {value}" for key, value in row.options.items())
        console.print(
            f"\nOpportunity: {row.technique} {options} saves {row.saves_ms:.2f} ms a step "
            f"({row.low:.2f} to {row.high:.2f}). Numerics: {row.numerics}."
        )
    for line in diagnosis.acquitted:
        console.print(f"\nLooked at, and not to blame: {printable(line)}.")
