"""The page of a search: the best configuration, whether it is worth it, and every trial."""

from hotlap.report.page import wording
from hotlap.report.page.bars import draw_stacks
from hotlap.report.page.curves import Curve, draw_curves
from hotlap.report.page.front import objectives_of, section_of_front
from hotlap.report.page.importance import LEAST_TRIALS, importances
from hotlap.report.page.intervals import Interval, draw_intervals
from hotlap.report.page.machine import section_of_command, section_of_machine
from hotlap.report.page.parallel import Axis, draw_parallel
from hotlap.report.page.search_tables import (
    rung_text,
    section_of_settings,
    section_of_trials,
    value_text,
)
from hotlap.report.page.view import (
    Block,
    Chart,
    Code,
    Document,
    Fact,
    Page,
    Section,
    Table,
    Text,
    list_of,
    part_of,
)
from hotlap.report.too_large import none_fits_text

_LOG = ("loguniform", "poweroftwo")
_GOOD = 1 / 3
"""Share of trials that are drawn as the better ones."""


def page_of_search(document: Document) -> Page:
    """Return the page of what `hotlap search --json` prints."""
    spec = part_of(document, "search")
    sections = [
        section_of_front(document),
        _best(document),
        _history(document),
        _parameters(document),
        _importance(document),
        section_of_trials(document),
        section_of_settings(document),
        section_of_machine(document),
        section_of_command(document),
    ]
    return Page(
        "Are there better hyperparameters?",
        " ".join([str(spec.get("recipe")), *map(str, list_of(spec, "args"))]),
        _answer(document),
        _facts(document),
        [section for section in sections if section.blocks],
    )


def _objective(document: Document) -> tuple[str, bool]:
    """Return the name of what was compared first, and whether more of it is better."""
    return objectives_of(document)[0]


def _answer(document: Document) -> str:
    best, found = part_of(document, "best"), part_of(document, "comparison")
    name, _ = _objective(document)
    what = f"trial {best.get('number')}, {name} {wording.number(best.get('value'))}"
    if document.get("is_over") is False:
        return _so_far(document, what if best else "")
    if not best:
        return _without_best(document)
    front = list_of(document, "front")
    if front:
        names = " and ".join(each for each, _ in objectives_of(document))
        plural = "s" if len(front) > 1 else ""
        words = f"{len(front)} configuration{plural} that no other one beats in {names} at once."
        return f"{words} The best one in {name} is {what}."
    if not found:
        return f"The best configuration is {what}. {_not_compared(document)}"
    interval = f"{wording.bound(found['low'])} to {wording.bound(found['high'])}"
    words = f"over {found['seeds']} seeds by {wording.bound(found['gain'])} ({interval})"
    words += _failed_seeds(found)
    if found.get("verdict") == "better":
        return f"Yes: {what}, is better than the recipe's own configuration {words}."
    if found.get("verdict") == "worse":
        return f"No: the best one, {what}, is worse than the recipe's own configuration {words}."
    return (
        f"Not beyond the noise of seeds: the best one, {what}, differs from the recipe's own "
        f"configuration {words}, an interval that contains 0."
    )


def _so_far(document: Document, best: str) -> str:
    """Return what to say of a search that still runs, or was interrupted."""
    wanted = wording.number(part_of(document, "search").get("trials"))
    ended = sum(trial.get("state") != "open" for trial in list_of(document, "trials"))
    words = f"The search is not over: {ended} of {wanted} trials have been compared or have ended."
    return f"{words} The best one so far is {best}." if best else words


def _without_best(document: Document) -> str:
    """Return why there is no best configuration."""
    ended = _ended(document)
    if not ended and part_of(document, "failures"):
        return "No trial gave a value: see below why each has failed."
    limit = part_of(document, "search").get("memory_bytes")
    held = [trial["memory_bytes"] for trial in ended if trial.get("is_too_large")]
    if held and wording.is_number(limit):
        return none_fits_text(held, int(limit), len(list_of(document, "trials")))
    return "No trial was trained to the end, so there is no best configuration."


def _not_compared(document: Document) -> str:
    """Return why the best configuration was not compared with the recipe's own."""
    best, trials = part_of(document, "best"), list_of(document, "trials")
    if part_of(document, "search").get("defaults") is None:
        return "The recipe has no values of its own to compare with."
    # The recipe's own are the first trial's.
    if best.get("number") == 0:
        return "The recipe's own values are the best ones that were found."
    own = trials[0] if trials else {}
    if own.get("error") and not wording.is_number(own.get("value")):
        return f"The recipe's own values failed: {wording.ended(own['error'])}"
    return (
        "It was not compared with the recipe's own over several seeds, so it may be the noise of "
        "one."
    )


def _last_rung(document: Document) -> str:
    """Return the step at which trials end, as the values of a trial name it."""
    rungs = list_of(part_of(document, "search"), "rungs")
    return str(rungs[-1]) if rungs else ""


def _failed_seeds(found: Document) -> str:
    counts = {
        name: list_of(found, key).count(None)
        for key, name in (("best", "the best one"), ("own", "the recipe's own"))
    }
    failed = [f"{name} failed with {count} of them" for name, count in counts.items() if count]
    return f", where {' and '.join(failed)}" if failed else ""


def _facts(document: Document) -> list[Fact]:
    best = part_of(document, "best")
    name, is_more = _objective(document)
    trials, stopped = list_of(document, "trials"), document.get("stopped_early")
    taken, full = document.get("steps"), document.get("full_steps")
    share = ""
    if wording.is_number(full) and wording.is_number(taken) and full:
        share = f" ({taken / full:.0%})"
    facts = []
    if best:
        kind = f"trial {best.get('number')}; {'more' if is_more else 'less'} is better"
        facts.append(Fact(f"best {name}", wording.number(best.get("value")), kind))
    large = sum(bool(trial.get("is_too_large")) for trial in _ended(document))
    ruled_out = f", {large} too large" if large else ""
    facts += [
        Fact("trials", str(len(trials)), f"{wording.number(stopped)} stopped early{ruled_out}"),
        Fact(
            "steps",
            wording.number(taken),
            f"of {wording.number(full)}{share} without stopping; "
            f"{wording.number(document.get('repeat_steps'))} more with other seeds",
        ),
    ]
    failures = part_of(document, "failures")
    if failures:
        words = ", ".join(f"{count} {why}" for why, count in failures.items())
        facts.append(Fact("failed", str(sum(failures.values())), words))
    return facts


def _best(document: Document) -> Section:
    best, spec = part_of(document, "best"), part_of(document, "search")
    if not best:
        return Section("The best configuration", [])
    defaults = part_of(spec, "defaults")
    rows = [
        (str(name), value_text(value), value_text(defaults[name]) if name in defaults else "")
        for name, value in part_of(best, "parameters").items()
    ]
    blocks: list[Block] = [Table(("parameter", "best", "the recipe's own"), rows)]
    if document.get("command"):
        blocks += [Text("This trains it:"), Code(str(document["command"]))]
    found = part_of(document, "comparison")
    if found and all(wording.is_number(found[key]) for key in ("gain", "low", "high")):
        name, _ = _objective(document)
        words = f"{wording.number(found['gain'])} over {found['seeds']} seeds"
        row = Interval(
            "best - the recipe's own",
            found["gain"],
            found["low"],
            found["high"],
            words,
            found["low"] > 0,
        )
        title = f"How much better the best configuration is, in {name}, with its interval"
        caption = (
            "Both were trained again with other seeds; the median of the differences between them, "
            "with its 90 % interval. To the right of 0, the best configuration is better."
        )
        blocks.append(
            Chart.of(
                lambda width: draw_intervals([row], width, f"better in {name}", title), caption
            )
        )
    seeds = [
        (str(trial.get("number")), ", ".join(map(wording.number, list_of(trial, "seeds"))))
        for trial in list_of(document, "trials")
        if list_of(trial, "seeds")
    ]
    if seeds:
        blocks.append(Table(("trial", "its value with each other seed"), seeds))
    return Section("The best configuration, and whether it is worth it", blocks)


def _ended(document: Document) -> list[Document]:
    """Return the trials that have a value, in the order in which they were begun."""
    trials = list_of(document, "trials")
    return [trial for trial in trials if wording.is_number(trial.get("value"))]


def _history(document: Document) -> Section:
    ended, (name, is_more) = _ended(document), _objective(document)
    if not ended:
        return Section("History", [])
    large = [trial for trial in ended if trial.get("is_too_large")]
    candidates = [trial for trial in ended if trial not in large]
    whole = [trial for trial in candidates if _last_rung(document) in part_of(trial, "rungs")]
    other = [trial for trial in candidates if trial not in whole]
    better = max if is_more else min
    steps: list[tuple[float, float]] = []
    for trial in whole:
        before = steps[-1][1] if steps else trial["value"]
        steps += [(trial["number"], before), (trial["number"], better(before, trial["value"]))]
    curves = [
        Curve(
            "best so far", [x for x, _ in steps], [y for _, y in steps], style=3, has_marks=False
        ),
        _points("trained to the end", whole, 0),
        _points("stopped early", other, 1),
        _points("too large", large, 2),
    ]
    curves = [curve for curve in curves if len(curve.xs) > (0 if curve.has_marks else 2)]
    title = f"{name} of each trial, in the order in which they were begun"
    caption = (
        f"{wording.sentence(title)} What was stopped early has the value that it was stopped at."
    )
    chart = Chart.of(lambda width: draw_curves(curves, width, "trial", name, title), caption)
    return Section("History", [chart])


def _points(name: str, trials: list[Document], style: int) -> Curve:
    xs = [trial["number"] for trial in trials]
    ys = [trial["value"] for trial in trials]
    return Curve(name, xs, ys, style=style, has_line=False)


def _comparable(document: Document) -> tuple[int, list[Document], list[float]]:
    """Return the first rung, and the trials that came to it, with their values there."""
    rungs = [int(rung) for rung in list_of(part_of(document, "search"), "rungs")]
    first = rungs[0] if rungs else 0
    found = []
    for trial in list_of(document, "trials"):
        value = part_of(trial, "rungs").get(str(first))
        if wording.is_number(value):
            found.append((trial, value))
    return first, [trial for trial, _ in found], [value for _, value in found]


def _parameters(document: Document) -> Section:
    first, trials, values = _comparable(document)
    name, is_more = _objective(document)
    if len(trials) < 2:
        return Section("Parameters and values", [])
    space = part_of(part_of(document, "search"), "space")
    axes = [
        Axis(
            str(each),
            [part_of(trial, "parameters").get(each) for trial in trials],
            is_log=part_of(space, each).get("kind") in _LOG,
            is_choice=part_of(space, each).get("kind") == "choice",
        )
        for each in dict.fromkeys(key for trial in trials for key in part_of(trial, "parameters"))
    ]
    after = rung_text(part_of(document, "search"), first)
    axes.append(Axis(f"{name} after {after}", values))
    order = sorted(range(len(values)), key=lambda k: -values[k] if is_more else values[k])
    good = {*order[: max(1, round(_GOOD * len(order)))]}
    numbers = [trial.get("number") for trial in trials]
    number = part_of(document, "best").get("number")
    best = numbers.index(number) if number in numbers else None
    words = {
        "best": f"the best, trial {number}",
        "good": "the better third",
        "other": "the others",
    }
    title = "Each trial as a line through its parameters and its value"
    caption = (
        f"Each line is a trial; the last axis is its {name} after {after}, to which all of these "
        "trials have come."
    )
    marked = [place in good for place in range(len(trials))]
    return Section(
        "Parameters and values",
        [Chart.of(lambda width: draw_parallel(axes, marked, best, width, title, words), caption)],
    )


def _importance(document: Document) -> Section:
    first, trials, values = _comparable(document)
    found = importances([part_of(trial, "parameters") for trial in trials], values)
    title = "Which parameters matter"
    if not found:
        few = f"Fewer than {LEAST_TRIALS} trials can be compared: too few to tell."
        return Section(title, [Text(few)] if len(values) < LEAST_TRIALS else [])
    rows = [
        (
            f"{each.name}: {each.share:.0%}, "
            + (
                f"chance gives up to {each.chance:.0%}"
                if each.share > each.chance
                else f"not told apart from chance ({each.chance:.0%})"
            ),
            {"share": 100 * each.share},
        )
        for each in found
    ]
    words = "Share of the differences between trials that each parameter explains"
    after = rung_text(part_of(document, "search"), first)
    caption = (
        f"{words}: of the variance of their ranks after {after}, the part between groups of the "
        "parameter's values (thirds, where these are numbers). Parameters that act together are "
        "not seen. Chance: what 19 of 20 parameters without any effect stay below."
    )
    return Section(title, [Chart.of(lambda width: draw_stacks(rows, width, "%", words), caption)])
