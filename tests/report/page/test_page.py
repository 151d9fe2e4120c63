"""A page is one file that asks for nothing, and shows what its document says."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hotlap.errors import UsageError
from hotlap.report.page.documents import check_document, read_document
from hotlap.report.page.sources import document_of
from hotlap.report.page.verdict import MEANING
from hotlap.report.page.writing import page_of, render, write_page
from hotlap.track.metrics_file import METRICS
from hotlap.track.records import EPOCH, STEP, Record
from tests.report.page import documents
from tests.report.page.parsing import read

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[2J\u202e{{ 7*7 }}"
NAN = math.nan
KINDS = (
    "diagnosis",
    "tuning",
    "tuning without a gain",
    "training",
    "memory",
    "demo",
    "search",
    "run",
    "comparison",
)


def html_of(document: dict[str, Any]) -> str:
    return render(page_of(document))


def words_of(document: dict[str, Any]) -> str:
    """Return the text of a page, its charts included, in one line."""
    return " ".join(read(html_of(document)).text.split())


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return documents.all_documents(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_html_that_asks_for_nothing(
    kind: str, known: dict[str, dict[str, Any]]
) -> None:
    html = html_of(known[kind])
    reader = read(html)
    assert html.startswith("<!doctype html>\n<!-- hotlap -->")
    assert not reader.faults
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert "default-src 'none'" in html


@pytest.mark.parametrize(
    "wrong",
    [
        '<img src="https://example.org/a.png">',
        '<p style="background:url(//example.org/a)">',
        "<style>@import 'a.css'</style>",
        '<p onclick="x()">',
        "<div><p></div>",
        "<div>",
    ],
)
def test_what_looks_for_requests_finds_them(wrong: str) -> None:
    assert read(f"<!doctype html><html><body>{wrong}</body></html>").faults


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_others_are_text_wherever_they_stand(
    kind: str, known: dict[str, dict[str, Any]]
) -> None:
    html = html_of(planted(known[kind]))
    reader = read(html)
    assert not reader.faults and "script" not in reader.tags and "img" not in reader.tags
    assert "alert(1)" in reader.text
    assert "\x1b" not in html and "\u202e" not in html and " 49 " not in reader.text


def planted(value: Any, key: str = "") -> Any:
    """Return a document with something evil in every text that hotlap does not choose itself."""
    if isinstance(value, dict):
        own = ("plan", "phases", "held_out", "metrics", "kinds", "values", "task")
        names = {EVIL: 1.0} if key in ("held_out", "metrics") else {}
        names |= {EVIL: {EVIL: EVIL}} if key == "plan" and key in own else {}
        return {name: planted(each, name) for name, each in value.items()} | names
    if isinstance(value, list):
        return [planted(each, key) for each in value]
    fixed = ("kind", "schema", "outcome", "tier", "state", "band")
    return EVIL if isinstance(value, str) and key not in fixed else value


def test_a_diagnosis_shows_its_figures_with_evidence_place_and_remedy() -> None:
    words = words_of(documents.diagnosis())
    assert "A step takes 10.00 ms; 60% of it is waiting for data." in words
    for shown in (
        *("per_item_decode train.py:12", "costs 5.50 ms a step, 55% of it"),
        *(
            "5.90 ms; a step of the watched run spent 6.00 ms on it",
            "samples are decoded one by one.",
        ),
        *("`resident` keeps them.", "plan resident"),
        *("data waiting for the next batch 6.00 ms 60.0%", "data train.py:5 50.0%"),
        *("▲ mistake unscaled_input train.py:7", "pixels reach 255.", "divide by 255."),
        *("? suspected slow_data train.py:30", "takes up to 6.00 ms of a step, not measured"),
        *("threads(count=1) 0.70 ms (0.50 to 0.90) rounding", "slow_optimizer at train.py:33"),
        "Tried, no gain found: host_allocator gave 1.00x (0.99 to 1.01)",
        *("identical runs differ by 2.1%", "The run takes 12,000 steps."),
        *("a CPU, 2 cores usable", "8.0 GiB", "hotlap diagnose train.py --epochs 10"),
    ):
        assert shown in words, shown


@pytest.mark.parametrize(("least", "words"), [(5.2e-6, "0.0052 µs"), (3.25, "3.25 ms")])
def test_a_limit_is_not_rounded_to_nothing(least: float, words: str) -> None:
    limits = {"least_step_ms": least, "computing_ms": least, "moving_ms": 0.0}
    shown = words_of({**documents.diagnosis(), "limits": limits})
    assert f"this machine's limit {words}" in shown
    assert f"could not run faster than {words} on this machine" in shown
    assert f"computing them takes at least {words}" in shown


def test_what_was_tried_without_a_result_is_not_called_unmeasured() -> None:
    document = documents.diagnosis()
    document["suspects"][0]["why"] = "Undecided: it gave 1.15x (1.07 to 1.28)"
    words = words_of(document)
    assert "a step, undecided" in words and "undecided it gave 1.15x (1.07 to 1.28)." in words
    assert "not measured" not in words


def test_a_tuning_shows_why_a_plan_was_chosen_that_is_not_the_fastest() -> None:
    words = words_of(documents.tuning() | {"why_chosen": "this one was chosen: it saves more"})
    assert "this one was chosen: it saves more." in words


def test_a_tuning_shows_what_changed_and_why_to_believe_it() -> None:
    words = words_of(documents.tuning())
    assert "A step is 2.31 times faster, and the script is not edited." in words
    for shown in (
        *("interval 2.20 to 2.41, 24 paired turns", "4.00 → 1.73 ms", "100.0 s → 61.0 s"),
        *("identical runs differ by up to 3.4%", "rounding over 343 steps"),
        *("before: the plain run", "after: under the plan: 1.71 ms", "0.11 ms"),
        *("in one process: 2.36x (2.20 to 2.41)", "in turns (claimed): 2.31x (2.20 to 2.41)"),
        *("1 of 2 checks passed", "✓ passed 343 batches have equal digests", "◐ in part"),
        *("one update 0.00034 of its norm", "batches any bit", "everything after step 343"),
        *("exact 1.50x (1.40 to 1.60) resident", "resident applied 2.00x (1.90 to 2.10)."),
        "It is made of: start-up 2.0 -> 2.5 s, steps 48.0 -> 20.0 s",
        *("By the means of all turns", "2.20x", "threads(count=2)"),
        *("two standard errors", "hotlap run --plan auto train.py"),
    ):
        assert shown in words, shown


def run_of(folder: Path, *losses: float) -> dict[str, Any]:
    """Return the document of a run with these losses, from step 99 on."""
    records = [
        Record(STEP, step, 1, step / 10, {"loss": loss}) for step, loss in enumerate(losses, 99)
    ]
    documents.write_run(folder, 0.1, count=0)
    (folder / METRICS).write_text("".join(record.line() for record in records))
    return document_of(folder)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((2.0, 1.0), "; the training loss went from 2 to 1."),
        ((2.0, 1.0, NAN, NAN), " went from 2 to 1, and was not finite from step 101 on."),
        ((2.0, math.inf, 1.0, NAN), " went from 2 to 1, and was not finite at 2 of the 4 "
         "recorded steps: first at step 100, and from step 102 on."),
        ((2.0, NAN, 1.0), " and was not finite in 1 step before the end: step 100."),
        ((2.0, NAN, NAN, 1.0), " in 2 steps before the end: first at step 100."),
        ((NAN, -math.inf), "; the training loss was not finite from step 99 on."),
    ],
)  # fmt: skip
def test_a_run_whose_loss_became_nan_says_from_where_on(
    losses: tuple[float, ...], words: str, tmp_path: Path
) -> None:
    assert page_of(run_of(tmp_path / "a", *losses)).answer.endswith(words)


def test_a_run_that_was_resumed_says_that_nobody_trained_it_in_between(tmp_path: Path) -> None:
    document = run_of(tmp_path / "a", 2.0, 1.0)
    assert "resumed" not in page_of(document).answer
    document["info"]["resumed"] = [{"at": "2026-01-01T00:00:00Z", "step": 99}]
    assert ", resumed once, time in between included;" in page_of(document).answer


def test_a_loss_that_became_nan_is_not_called_unknown(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in "ab")
    run_of(first, 2.0, 1.0)
    run_of(second, 2.0, NAN)
    with (second / METRICS).open("a") as file:
        file.write(Record(EPOCH, 2, 1, 1.0, {"loss": NAN}).line())
    page = page_of(document_of(first, second))
    assert page.answer.endswith(" The last training losses are 1 and not finite.")
    shown = words_of(document_of(first, second))
    assert "epoch: loss not known not finite" in shown and "step: loss 1 not finite" in shown
    assert "training loss not finite the last epoch" in words_of(document_of(second))
    # Of a run without a loss none is told.
    bare = documents.write_run(tmp_path / "c", 0.1, count=0)
    assert "training losses" not in page_of(document_of(first, bare)).answer


@pytest.mark.parametrize("tier", MEANING)
def test_a_verdict_says_what_is_learned(tier: str) -> None:
    document = documents.verdict()
    document["verdict"]["tier"] = tier
    checks = document["verdict"]["checks"]
    words = f"Verdict: {tier} over 343 steps. What is learned is {MEANING[tier]}."
    assert f"{words} 1 of 2 checks passed, 1 in part." in words_of(document)
    checks[1]["state"] = "passed"
    assert f"{words} 2 of 2 checks passed." in words_of(document)
    checks += [{"name": "a", "state": "failed"}, {"name": "b", "state": "not_made"}]
    counted = "2 of 4 checks passed, 1 not made, 1 failed."
    assert f"{words} {counted}" in words_of(document)


def test_without_a_gain_no_speed_is_claimed() -> None:
    words = words_of(documents.tuning_without_gain())
    assert "Undecided, and no plan was confirmed: 2 plans tried." in words
    assert "times faster, and" not in words and "Why to believe it" not in words


def test_a_long_reason_is_a_list_and_not_a_headline() -> None:
    reason = "; ".join(f"the {k}th reason of many why nothing can be told" for k in range(4))
    page = page_of(documents.tuning_without_gain() | {"reason": reason})
    assert page.answer == "Undecided, and no plan was confirmed."
    assert page.sections[0].title == "Why"
    assert "the 3th reason of many why nothing can be told." in read(render(page)).text


def test_a_training_shows_each_epoch_and_what_the_plan_did() -> None:
    words = words_of(documents.training())
    for shown in (
        *("Trained for 20 steps in 2.5 s", "held out: accuracy 0.9877", "1,234 samples/s"),
        *("recipe.py --lr 0.1", "3.0 GiB", "resident refused the data set draws numbers."),
        *("held-out accuracy", "512.4"),
    ):
        assert shown in words, shown


def test_memory_shows_its_peak_by_kind_and_line() -> None:
    words = words_of(documents.memory())
    assert "Tensors take 64.0 MiB at the peak, 100% of it activations." in words
    assert "64.0 MiB activations a.py:5 1" in words and "peak 64.0 MiB, step 1" in words


def test_a_story_holds_the_diagnosis_the_tuning_and_the_runs() -> None:
    words = words_of(documents.story())
    assert "per_item_decode" in words and "1 of 2 checks passed" in words
    assert "plain: 20.2 s" in words and "epoch 3: loss 0.321" in words


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("better", "Yes: trial 11, loss"),
        ("same", "Not beyond the noise of seeds: the best one, trial 11"),
        ("worse", "No: the best one, trial 11"),
    ],
)
def test_a_search_says_whether_it_was_worth_it(verdict: str, words: str) -> None:
    shown = words_of(documents.search(verdict))
    assert words in shown and "over 3 seeds by 0.205" in shown
    for each in (
        *("hotlap train recipe.py --epochs 3 --lr 0.0131 --width 128", "0.21, 0.22, 0.23"),
        *("16 11 stopped early", "2,400 of 4,800 (50%) without stopping", "1,800 more"),
        *("1 nan", "the loss is not finite", "one of this many continues 3"),
        *("trained to the end", "best so far", "loss after 100 steps", "the better third"),
    ):
        assert each in shown, each


def test_trials_that_were_compared_after_shares_of_their_steps_are_said_to_be() -> None:
    found = documents.search()
    shown = words_of(found | {"search": found["search"] | {"is_own_length": True}})
    assert "loss after 33% of the run" in shown and "loss after the whole run" in shown
    assert "after 100 steps" not in shown
    assert "100, 300 steps of the recipe's own configuration, others after the same" in shown


def test_a_search_without_a_comparison_claims_nothing() -> None:
    shown = words_of(documents.search() | {"comparison": None})
    assert "so it may be the noise of one" in shown and "Yes" not in shown
    no_best = {"comparison": None, "best": None, "command": None}
    ended = {"value": None, "rungs": {"100": None}, "state": "nan"}
    failed = [each | ended for each in documents.search()["trials"]]
    shown = words_of(documents.search() | no_best | {"trials": failed})
    assert "No trial gave a value: see below why each has failed." in shown
    assert "trial None" not in shown


def test_a_search_whose_best_is_the_recipes_own_says_so() -> None:
    document = documents.search()
    own = {"comparison": None, "best": document["trials"][0]}
    answer = page_of(document | own).answer
    assert answer.startswith("The best configuration is trial 0, loss ")
    assert answer.endswith(". The recipe's own values are the best ones that were found.")
    # A trial 0 that is not the recipe's own, as it has none.
    answer = page_of(document | own | {"search": document["search"] | {"defaults": None}}).answer
    assert answer.endswith("The recipe has no values of its own to compare with.")
    failed = {"value": None, "state": "crash", "error": "no file"}
    document["trials"][0] |= failed
    answer = page_of(document | {"comparison": None}).answer
    assert answer.endswith("The recipe's own values failed: no file.")


def test_a_search_that_was_stopped_before_any_trial_ended_says_so() -> None:
    document = documents.search() | {"comparison": None, "best": None, "command": None}
    for each in document["trials"]:
        each["rungs"].pop("300", None)
    words = words_of(document)
    assert "No trial was trained to the end, so there is no best configuration." in words
    # Of what is drawn, nothing is called the end of a training.
    assert "trained to the end" not in words.replace("No trial was trained to the end", "")
    assert "stopped early" in words


def test_a_search_says_which_trials_were_too_large() -> None:
    document = documents.search()
    assert "too large" not in words_of(document) and "memory limit none" in words_of(document)
    document |= {"comparison": None, "best": None, "command": None, "stopped_early": 0}
    document["search"]["memory_bytes"] = 100 * 2**20
    for each in document["trials"]:
        each["is_too_large"] = True
    answer = page_of(document).answer
    assert "15 of 16 trials held more than --memory 100 MiB (the least: 300 MiB)" in answer
    words = words_of(document)
    assert "16 0 stopped early, 15 too large" in words and "memory limit 100.0 MiB" in words
    assert "64 too large" in words and " done " not in words
    # Neither the end of a training nor the best so far is theirs; and what failed says why.
    assert "best so far" not in words and "trained to the end" not in words.split(answer)[-1]
    assert " nan " in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "has schema 2, which a newer hotlap wrote"),
        ({"schema": "1"}, "has no `schema`"),
        ({"kind": "horoscope"}, "is of the kind 'horoscope'"),
        ({"kind": None, "phases": None, "findings": None}, None),
    ],
)
def test_a_document_of_which_there_is_no_page_is_refused(
    change: dict[str, Any], words: str | None
) -> None:
    document = documents.diagnosis() | change
    if words is None:
        document = {"schema": 1, "text": "an explanation"}
        words = "is of an unknown kind"
    with pytest.raises(UsageError) as raised:
        page_of(document, "'a.json'")
    assert words in str(raised.value) and "'a.json'" in str(raised.value)
    assert "Expected:" in str(raised.value)


def test_a_document_of_an_older_hotlap_is_known_by_what_it_holds(
    known: dict[str, dict[str, Any]],
) -> None:
    for kind in ("diagnosis", "tuning", "training", "memory", "search"):
        document = copy.copy(known[kind])
        del document["kind"], document["made"]
        assert check_document(document, "it") == kind
        assert "does not say" in words_of(document)


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is not JSON"), ("[1]", "has no `schema`"), ("{}", "has no `schema`")],
)
def test_a_file_that_holds_something_else_is_refused(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="Expected") as raised:
        read_document(path)
    assert words in str(raised.value)


def test_a_document_that_lacks_what_its_kind_has_is_refused_and_writes_nothing(
    tmp_path: Path,
) -> None:
    document = documents.tuning() | {"speedup": {"median": None}}
    with pytest.raises(UsageError, match="is not a complete document of the kind 'tuning'"):
        write_page(document, tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_a_page_is_a_function_of_its_document(tmp_path: Path) -> None:
    """What a command writes at once, and what is made of the stored document, are the same."""
    document = documents.tuning()
    stored = json.loads(json.dumps(document))
    write_page(document, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == html_of(stored)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
