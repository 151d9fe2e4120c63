"""`hotlap diagnose` as text in a terminal."""

from rich.console import Console
from rich.table import Table

from hotlap.diagnosis.findings import UNDECIDED, Diagnosis, Finding, in_words_of_most
from hotlap.plan.record import in_words
from hotlap.report import limits, profile
from hotlap.report.estimating import size
from hotlap.report.printable import printable

_BAR = 40
_WORTH_SAYING = 0.01
"""Share of a step."""


def page(diagnosis: Diagnosis, console: Console) -> None:
    """Print where a step's time goes, and what each cause costs."""
    trace = diagnosis.trace
    step = trace.step_ms()
    console.print(f"\n{printable(diagnosis.script)}")
    console.print(
        f"A step takes {step['mean']:.2f} ms on average (median {step['median']:.2f}, 5 to 95 %: "
        f"{step['low']:.2f} to {step['high']:.2f}, {step['n']} steps"
        + (", whole epochs)." if trace.covers_whole_periods else "; no whole epoch).")
    )
    _phases(diagnosis, console)
    _lines(diagnosis, console)
    _process(diagnosis, console)
    _findings(diagnosis, console)
    _not_measured(diagnosis, console)
    _mistakes(diagnosis, console)
    _limits(diagnosis, console)
    if diagnosis.profile is not None:
        profile.section(diagnosis.profile, console)
    anchor = trace.anchor
    console.print(f"\nSteps were recognised by {anchor.kind} (confidence {anchor.confidence}).")
    facts = trace.facts
    if facts.planned_steps is not None:
        console.print(
            f"The run takes {facts.planned_steps:,} steps: {printable(facts.planned_why)}."
        )
    for note in diagnosis.notes:
        console.print(f"Note: {printable(note)}.")
    if diagnosis.unprotected:
        console.print(
            "Trials could still have changed: " + printable("; ".join(diagnosis.unprotected))
        )


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


def _lines(diagnosis: Diagnosis, console: Console) -> None:
    """Print the lines below which the large phases are spent."""
    means = diagnosis.trace.phase_means()
    table = Table(
        title="The hottest lines, with their share of the phase",
        title_justify="left",
        box=None,
        show_header=False,
    )
    for _ in range(4):
        table.add_column(justify="left")
    for phase, lines in diagnosis.hot_lines().items():
        for line in lines:
            ms = f"{line.share * means[phase]:8.3f} ms"
            table.add_row(phase, ms, f"{line.share:4.0%}", printable(line.where))
    if table.row_count:
        console.print()
        console.print(table)


def _process(diagnosis: Diagnosis, console: Console) -> None:
    """Print what else the process did, as far as it is worth a line."""
    counts, step = diagnosis.trace.process, diagnosis.trace.step_ms()
    if counts is None:
        return
    told = []
    collector_ms = counts.collector_ms / counts.steps
    is_long = counts.longest_collection_ms >= step["median"]
    if is_long or collector_ms >= _WORTH_SAYING * step["mean"]:
        told.append(
            f"Python's garbage collector ran {counts.collections:,} times in {counts.steps:,} "
            f"steps: {collector_ms:.2f} ms a step, {counts.longest_collection_ms:.1f} ms at the "
            "longest."
        )
    if counts.graphs:
        told.append(
            f"torch.compile made {counts.graphs} graphs after the first steps, in "
            f"{counts.compile_ms / 1e3:.1f} s."
        )
    if counts.graph_breaks:
        told.append(f"Graph breaks in what is compiled: {counts.graph_breaks}.")
    if counts.swapped_bytes or counts.major_faults >= counts.steps:
        told.append(
            f"Of the process's memory (at most {size(counts.peak_bytes)}), "
            f"{size(counts.swapped_bytes)} are swapped out; {counts.major_faults:,} pages were "
            f"read from a disk in {counts.steps:,} steps."
        )
    if counts.device_retries:
        told.append(
            f"torch's allocator had to give memory of the GPU back {counts.device_retries} times; "
            f"it held {size(counts.device_reserved_bytes)} at most, of which tensors used "
            f"{size(counts.device_peak_bytes)}."
        )
    for line in ["", *told] if told else ():
        console.print(line)


def _findings(diagnosis: Diagnosis, console: Console) -> None:
    if diagnosis.findings:
        console.print(
            "\nCosts and speed-ups are those of the median step; times of phases and lines are "
            "those of the mean step. To remove a part of a step may save more than that part takes."
        )
    for number, finding in enumerate(diagnosis.findings, 1):
        console.print(
            f"\n{number}. {finding.rule} at {printable(finding.where)}: costs "
            f"{finding.cost_ms:.2f} ms a step ({finding.low:.2f} to {finding.high:.2f}; "
            f"{_most(finding)})"
        )
        console.print(f"   {printable(finding.evidence)}.")
        if finding.low <= 0:
            console.print(
                "   The interval reaches below 0: most turns show a cost, but not all. Diagnose "
                "again when the machine is quieter."
            )
        console.print(f"   Remedy: {printable(finding.remedy)}. Numerics: {finding.numerics}.")
    _opportunities(diagnosis, console)
    for line in diagnosis.ruled_out:
        console.print(f"\nChecked, no gain by itself: {printable(line)}.")
    if not diagnosis.findings:
        # Suspected causes follow it.
        console.print(f"\n{_nothing_found(diagnosis)}")


def _most(finding: Finding) -> str:
    most = f"{finding.at_most_ms:.2f} ms"
    return in_words_of_most(finding.cost_ms, finding.at_most_ms, finding.bound_words, most)


def _opportunities(diagnosis: Diagnosis, console: Console) -> None:
    for row in diagnosis.opportunities:
        console.print(
            f"\nOpportunity: {in_words(row.technique, row.options)} saves "
            f"{row.saves_ms:.2f} ms a step ({row.low:.2f} to {row.high:.2f}). "
            f"Numerics: {row.numerics}."
        )
        if row.remedy:
            console.print(f"   In the script: {row.remedy}.")
    for line in diagnosis.without_gain:
        console.print(f"\nTried, no gain found: {printable(line)}.")


def _nothing_found(diagnosis: Diagnosis) -> str:
    if diagnosis.suspects:
        return "No cause was measured. Suspected causes:"
    if diagnosis.floor is None or not diagnosis.ruled_out:
        return "No rule applies: no known cause takes a large enough part of the step."
    return f"No remedy gains more than identical runs differ ({diagnosis.floor:.1%})."


def _mistakes(diagnosis: Diagnosis, console: Console) -> None:
    for row in diagnosis.mistakes:
        console.print(f"\nMistake: {row.rule} at {printable(row.where)}")
        console.print(f"   {printable(row.evidence)}.")
        console.print(f"   Remedy: {printable(row.remedy)}.")


def _limits(diagnosis: Diagnosis, console: Console) -> None:
    told = limits.lines(diagnosis.limits)
    for line in ["", *told] if told else ():
        console.print(printable(line))


def _not_measured(diagnosis: Diagnosis, console: Console) -> None:
    for row in diagnosis.suspects:
        console.print(
            f"\nSuspected: {row.rule} at {printable(row.where)}: takes up "
            f"to {row.at_most_ms:.2f} ms of a step"
        )
        console.print(f"   {printable(row.evidence)}.")
        prefix = "" if row.why.startswith(UNDECIDED) else "Not measured: "
        console.print(f"   {prefix}{printable(row.why)}.")
        console.print(f"   Remedy: {printable(row.remedy)}.")
