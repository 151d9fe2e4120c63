"""The page of `hotlap demo`: a diagnosis, a tuning, and the runs that were shown."""

from hotlap.report.page import wording
from hotlap.report.page.bars import draw_stacks
from hotlap.report.page.diagnosis import answer_of_diagnosis, sections_of_diagnosis
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.tuning import answer_of_tuning, facts_of_tuning, sections_of_tuning
from hotlap.report.page.view import (
    Block,
    Chart,
    Document,
    Page,
    Section,
    Table,
    Text,
    list_of,
    part_of,
)


def page_of_story(document: Document) -> Page:
    """Return the page of what `hotlap demo --page` tells."""
    diagnosis, tuning = part_of(document, "diagnosis"), part_of(document, "tuning")
    before = Section("1. Why is it slow?", [Text(answer_of_diagnosis(diagnosis))])
    after = Section("2. Made faster, and proven", [Text(answer_of_tuning(tuning))])
    sections = [before, *sections_of_diagnosis(diagnosis), after, *sections_of_tuning(tuning)]
    sections += [_runs(document), section_of_machine(document), section_of_command(document)]
    return Page(
        "The whole story on one script",
        str(tuning.get("script")),
        answer_of_tuning(tuning),
        facts_of_tuning(tuning),
        sections,
    )


def _runs(document: Document) -> Section:
    runs = list_of(document, "runs")
    rows = [
        (
            f"{run.get('name')}: {wording.seconds(run.get('seconds'))}",
            {"all": run.get("seconds") or 0.0},
        )
        for run in runs
    ]
    title = "Seconds of each run, with start-up"
    caption = (
        "Each was run once, in turns of a second: while one ran, the others stood still, which is "
        "not counted."
    )
    blocks: list[Block] = []
    if rows:
        blocks.append(Chart.of(lambda width: draw_stacks(rows, width, "seconds", title), caption))
        cells = [(str(run.get("name")), " ".join(list_of(run, "last_line"))) for run in runs]
        blocks.append(Table(("run", "its last line"), cells))
        words = "`hotlap run` without a plan prints what the plain script prints, except for times."
        blocks.append(Text(words))
    return Section("3. Run", blocks)
