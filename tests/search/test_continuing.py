"""A search that is continued or printed again: with the code, plan and page that it had."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap import cli
from hotlap.cli.page import made_on
from hotlap.errors import UsageError
from hotlap.host.facts import Host
from hotlap.plan.file import PlanFile
from hotlap.recipe import load
from hotlap.search import executors
from hotlap.search.journal import read
from hotlap.search.origin import Origin, in_words
from hotlap.search.spec import SearchSpec
from hotlap.search.study import JOURNAL, Study
from tests.search.test_decide import SPACE, Killed, Workers, spec_of
from tests.search.test_search_command import PLAIN

HOST = Host(cpu="the first CPU", cores=2, memory_bytes=2**33, torch="2.12.0", python="3.11.2")
THREADS = {"threads": {"count": 2}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    (tmp_path / "recipe.py").write_text(f"import helper_of_search\n{PLAIN}")
    (tmp_path / "helper_of_search.py").write_text("SIZE = 1\n")
    return tmp_path


def begun(recipe: str = "recipe.py") -> Origin:
    load(recipe)
    return Origin.of(recipe, made_on(HOST))


def opened(folder: Path, spec: SearchSpec, origin: Origin | None = None, **more: Any) -> Study:
    """Return the study after it has trained what was left."""
    with Study(folder, spec, SPACE, origin, **more).opened() as study:
        study.run(Workers(1))
        return study


def kill(folder: Path, spec: SearchSpec, origin: Origin, after: int = 6) -> None:
    workers = Workers(1)
    workers.left = after
    with pytest.raises(Killed), Study(folder, spec, SPACE, origin).opened() as study:
        study.run(workers)


def test_a_search_is_not_continued_with_code_that_was_changed(here: Path) -> None:
    spec, origin = spec_of(trials=6), begun()
    assert list(origin.files).count("helper_of_search.py") == 1
    assert not {"recipe.py", str(here / "recipe.py")} & {*origin.files}
    kill(here / "s", spec, origin)
    (here / "helper_of_search.py").write_text("SIZE = 2\n")
    before = (here / "s" / JOURNAL).read_bytes()
    with pytest.raises(UsageError, match=r"'helper_of_search.py', which .* was changed"):
        opened(here / "s", spec, begun())
    assert (here / "s" / JOURNAL).read_bytes() == before
    # What the recipe can be imported without is no part of it.
    (here / "helper_of_search.py").unlink()
    assert origin.changed_file("recipe.py") is None
    (here / "helper_of_search.py").write_text("SIZE = 1\n")
    study = opened(here / "s", spec, begun())
    assert len(study.state.trials) == 6 and not study.notes


def test_the_result_of_code_that_was_changed_is_printed_as_what_it_is(here: Path) -> None:
    spec = spec_of(trials=3)
    first = opened(here / "s", spec, begun())
    assert not first.notes
    before = (here / "s" / JOURNAL).read_bytes()
    (same,) = opened(here / "s", spec, begun()).notes
    when = f"the result is of a search of {first.origin.made['time']}"
    assert same == f"{when}, nothing was trained now; to search again: --again"
    (here / "helper_of_search.py").write_text("raise SystemError\n")
    (other,) = opened(here / "s", spec, first.origin).notes
    changed = "'helper_of_search.py', which the recipe imports, was changed since"
    assert other == f"{when}, {changed}; to search again: --again"
    # Other versions are said, too.
    newer = replace(first.origin, made={**first.origin.made, "torch": "2.13.0"})
    assert "torch was 2.12.0, now it is 2.13.0" in opened(here / "s", spec, newer).notes[-1]
    assert (here / "s" / JOURNAL).read_bytes() == before


def test_a_journal_of_before_is_continued(here: Path) -> None:
    kill(here / "s", spec_of(trials=3), begun())
    path = here / "s" / JOURNAL
    first, *rest = map(json.loads, path.read_text().splitlines())
    for name in ("origin", "is_own_length"):
        del first[name]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (first, *rest)))
    written = in_words(path.stat().st_mtime)
    study = opened(here / "s", spec_of(trials=3, is_own_length=True), begun())
    assert study.origin.made == {"time": written} and not study.notes
    assert not study.spec.is_own_length


def test_a_recipe_is_the_same_however_its_path_is_typed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(trials=2)
    opened(here / "s", spec, begun())
    for path in ("./recipe.py", str(here / "recipe.py")):
        assert opened(here / "s", replace(spec, recipe=path), begun()).spec.recipe == path
    (here / "other").mkdir()
    (here / "other" / "recipe.py").write_text((here / "recipe.py").read_text())
    with pytest.raises(UsageError, match=r"recipe was recipe.py, now it is other/recipe.py"):
        opened(here / "s", replace(spec, recipe="other/recipe.py"), begun())
    # From another folder, too.
    monkeypatch.chdir(here / "other")
    assert opened(here / "s", replace(spec, recipe="../recipe.py"), begun("../recipe.py"))


def test_a_search_keeps_its_plan_once_one_was_tuned(here: Path) -> None:
    kill(here / "s", spec_of(trials=3), begun())
    tuned = spec_of(trials=3, plan=THREADS)
    with pytest.raises(UsageError, match=r"plan was \{\}, now it is"):
        opened(here / "s", tuned, begun())
    study = opened(here / "s", tuned, begun(), plan_is_given=False)
    assert study.spec.plan == {} and len(study.state.trials) == 3
    (note,) = study.notes
    assert note.startswith("the search keeps the plan that it began with, (plain). To search with")


def test_the_command_that_is_printed_has_the_plan_of_the_trials(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["search", "recipe.py", "--space", "lr=uniform(0.01,0.1)", "--trials", "2", "--json"]
    monkeypatch.setattr(executors, "executor_of", lambda *_: Workers(1))
    (here / "recipe.plan.toml").write_text("schema = 1\n[techniques.resident]\n")
    assert cli.main(argv) == 0
    assert "--plan auto" in json.loads(capsys.readouterr().out)["command"]
    (here / "recipe.plan.toml").unlink()
    assert cli.main(argv) == 0
    words = json.loads(capsys.readouterr().out)["command"].split()
    kept = PlanFile.read(Path(words[words.index("--plan") + 1]))
    assert kept.plan.techniques == {"resident": {}}


def test_a_search_without_a_result_gives_way_to_another_one(here: Path) -> None:
    typo = spec_of(trials=3, digest="typo")
    kill(here / "s", typo, begun(), after=1)
    assert [each["kind"] for each in read(here / "s" / JOURNAL)[0]] == ["search", "job", "lease"]
    (here / "s" / "trials" / "0000").mkdir()
    study = opened(here / "s", spec_of(trials=4, plan=THREADS), begun(), plan_is_given=False)
    assert len(study.state.trials) == 4 and study.spec.plan == THREADS
    assert not (here / "s" / "trials" / "0000").exists()
    assert "had no result yet, and was deleted: trials was 3, now it is 4" in study.notes[0]
    first = read(here / "s" / JOURNAL)[0][0]
    assert (first["kind"], first["trials"]) == ("search", 4)
    # What a trial has saved is kept, unless it can never have a result.
    kill(here / "saved", typo, begun(), after=1)
    trial = here / "saved" / "trials" / "0000"
    (trial / "ckpt" / "step-00000008").mkdir(parents=True)
    with pytest.raises(UsageError, match="trials was 3, now it is 4"):
        opened(here / "saved", spec_of(trials=4), begun())
    (trial / "outcome.json").write_text(json.dumps({"state": "usage", "error": "", "until": 8}))
    assert len(opened(here / "saved", spec_of(trials=4), begun()).state.trials) == 4
    # Nor is a trial's folder touched that another machine may still write to.
    kill(here / "ray", typo, begun(), after=1)
    path = here / "ray" / JOURNAL
    *lines, lease = path.read_text().splitlines()
    elsewhere = {k: v for k, v in json.loads(lease).items() if k not in ("pid", "start", "boot")}
    path.write_text("\n".join([*lines, json.dumps({**elsewhere, "engine": "ray"}), ""]))
    with pytest.raises(UsageError, match="trials was 3, now it is 4"):
        opened(here / "ray", spec_of(trials=4), begun())
    # One with a result is kept, however few it has.
    kill(here / "kept", typo, begun(), after=3)
    assert "result" in [each["kind"] for each in read(here / "kept" / JOURNAL)[0]]
    with pytest.raises(UsageError, match="trials was 3, now it is 4"):
        opened(here / "kept", spec_of(trials=4), begun())


def test_a_page_says_when_and_where_the_search_was_not_where_it_is_printed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["search", "recipe.py", "--space", "lr=uniform(0.01,0.1)", "--trials", "3", "--json"]

    def document(host: Host) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(Host, "detect", classmethod(lambda _: host))
        assert cli.main([*argv, "--page", "page.html"]) == 0
        return json.loads(capsys.readouterr().out)["made"], (here / "page.html").read_text()

    monkeypatch.setattr(executors, "executor_of", lambda *_: Workers(1))
    first, page = document(HOST)
    assert first["host"]["cpu"] == "the first CPU" and first["torch"] == "2.12.0"
    again, same = document(replace(HOST, cpu="another CPU", torch="2.13.0"))
    assert again == first and same == page
    assert "this command prints this result; with --again, it searches again." in page
    assert f"This page shows the result of a search of {first['time']}." in page
    # An earlier version did not write that down.
    path = here / "recipe.search" / JOURNAL
    lines = path.read_text().splitlines()
    begun_with = json.loads(lines[0])
    del begun_with["origin"]
    path.write_text("\n".join([json.dumps(begun_with), *lines[1:], ""]))
    old, page = document(HOST)
    assert {*old} == {"command", "time"} and "the first CPU" not in page
