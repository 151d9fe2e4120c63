"""What holds for every command."""

import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import hotlap
from hotlap import cli
from hotlap.cli.command import Command
from hotlap.cli.options import Duration, JsonFlag
from hotlap.cli.parser import app_of, options_of
from hotlap.errors import RunError

REPORTS_NOTHING = {"run", "demo"}
"""Commands without --json: one hands the terminal to the script, one is for people."""
Run = Callable[..., subprocess.CompletedProcess[str]]


def command_of(name: str) -> Command:
    return importlib.import_module(f"hotlap.cli.{name}").COMMAND


def planted(monkeypatch: pytest.MonkeyPatch, function: Callable[..., int]) -> None:
    command = Command("planted", function, examples=("hotlap planted",))
    monkeypatch.setitem(cli.COMMANDS, "planted", "For a test.")
    monkeypatch.setitem(sys.modules, "hotlap.cli.planted", SimpleNamespace(COMMAND=command))


def test_every_file_with_a_command_is_listed(source: Path) -> None:
    files = {p.stem for p in (source / "cli").glob("*.py") if "\nCOMMAND = " in p.read_text()}
    assert files == set(cli.COMMANDS)
    assert all(command_of(name).name == name for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_examples_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert f"Usage: hotlap {name}" in out
    assert "Examples:" in out and "Exit codes:" in out
    assert command_of(name).examples
    assert all(line.startswith(f"hotlap {name}") for line in command_of(name).examples)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    arguments = app_of(command_of(name)).assemble_argument_collection(parse_docstring=True)
    silent = [item.name for item in arguments if item.parse and not item.parameter.help]
    assert not silent


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_that_reports_has_json(name: str) -> None:
    has_json = "--json" in options_of(app_of(command_of(name)))
    assert has_json == (name not in REPORTS_NOTHING)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_in_the_documentation(name: str, root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    assert any(f"hotlap {name}" in page.read_text() for page in pages)


@pytest.mark.parametrize("name", cli.COMMANDS)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_unknown_option_is_a_usage_error(
    name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag for flag in flags if name not in REPORTS_NOTHING]
    assert cli.main([name, "--no-such-thing", *flags]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "--no-such-thing" in err and "Traceback" not in err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_missing_script_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not command_of(name).takes_script:
        pytest.skip("takes no script")
    before = ["plain"] * len(command_of(name).positionals)
    for argv, words in ((["nowhere.py"], "nowhere.py"), ([], "no SCRIPT")):
        assert cli.main([name, *before, *argv]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert words in err and "Expected" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["evn"], "Did you mean 'env'?"), (["--jsno"], "option '--jsno'"), (["\x1b[2J"], "x1b")],
)
def test_an_unknown_command_is_a_usage_error(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert not out
    assert words in err and "\x1b" not in err


def test_version_and_root_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == hotlap.__version__
    for argv in ([], ["--help"], ["-h"]):
        assert cli.main(argv) == 0
        out = capsys.readouterr().out
        assert "Exit codes:" in out and all(name in out for name in cli.COMMANDS)


def test_a_run_error_has_exit_code_1_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise RunError("the trial\x1b[2J hung")

    planted(monkeypatch, fail)
    assert cli.main(["planted"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err == "hotlap planted: the trial\\x1b[2J hung\n"


def test_a_defect_has_exit_code_1_and_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        return 1 // 0

    planted(monkeypatch, fail)
    # Code that is neither hotlap's nor a library's is the user's, as this function is.
    assert cli.main(["planted"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err and "raised by your code, at" in err
    monkeypatch.setattr("hotlap.usercode.is_users", lambda filename: False)
    assert cli.main(["planted"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err and "bug in hotlap" in err


def test_a_broken_pipe_of_the_users_code_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise BrokenPipeError("the data server went away")

    planted(monkeypatch, fail)
    assert cli.main(["planted"]) == 1
    err = capsys.readouterr().err
    assert "the data server went away" in err and "raised by your code, at" in err


def test_values_are_read_and_durations_become_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def take(*, budget: Duration = 1.0, json: JsonFlag = False) -> int:
        seen.append((budget, json))
        return 3

    planted(monkeypatch, take)
    assert cli.main(["planted", "--budget", "2m", "--json"]) == 3
    assert cli.main(["planted"]) == 3
    assert seen == [(120.0, True), (1.0, False)]
    assert cli.main(["planted", "--budget", "2 days"]) == 2
    assert "'2 days' is not a duration" in capsys.readouterr().err


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_in_0_3_seconds_and_without_torch(hotlap: Run) -> None:
    fastest = float("inf")
    for _ in range(10):
        before = _seconds_of_children()
        assert hotlap("--help").returncode == 0
        # Of the processor's time: other tests run beside this one.
        fastest = min(fastest, _seconds_of_children() - before)
        if fastest < 0.3:
            break
    assert fastest < 0.3
    code = (
        "from hotlap.cli import main; main(['--help']); import sys; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("False\n")


def test_a_belief_is_explained_with_what_is_true(hotlap: Run) -> None:
    done = hotlap("explain", "empty_cache", "--json")
    page = json.loads(done.stdout)
    assert page["kind"] == "belief" and "No live tensor is freed" in page["text"]
    assert "empty_cache" in hotlap("explain").stdout


FROM_OUTSIDE = """
from dataclasses import dataclass
from hotlap.techniques import Numerics, Proof, Technique

@dataclass(frozen=True)
class Options:
    pass

MINE = Technique(
    name="mine", seam="process", Options=Options, numerics=lambda: Numerics.EXACT,
    apply=lambda target: target, proof=lambda: Proof("no_effect", "it does nothing"),
)
"""


def test_a_plan_with_a_technique_from_outside_can_be_run(
    hotlap: Run, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.py").write_text(FROM_OUTSIDE)
    script = shutil.copy(root / "tests" / "tiny.py", tmp_path / "script.py")
    (tmp_path / "plan.toml").write_text("schema = 1\n[techniques.mine]\n")
    where = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    known = hotlap(
        *("run", "--plan", "plan.toml", "--technique", "outside:MINE", script, "--epochs", "1"),
        **where,
    )
    assert known.returncode == 0 and known.stdout.startswith("epoch 0")
    assert "mine: no_effect, it does nothing" in known.stderr
    unknown = hotlap("run", "--plan", "plan.toml", script, **where)
    assert unknown.returncode == 2 and "'mine' is not known" in unknown.stderr


def test_an_interruption_while_a_class_is_made_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_tokens: list[str]) -> int:
        class Named:
            def __set_name__(self, *_: object) -> None:
                raise KeyboardInterrupt

        class Holder:
            named = Named()

        return len(vars(Holder))

    monkeypatch.setattr(cli, "_dispatch", interrupted)
    assert cli.main(["tune"]) == 130
    assert capsys.readouterr().err == "hotlap tune: interrupted.\n"
