"""Whose token is it, and is the script there?"""

import os
from pathlib import Path

import pytest

from hotlap.cli.durations import parse_duration
from hotlap.cli.target import Target, split
from hotlap.errors import MissingFile, UsageError

OPTIONS = {"--budget": True, "--json": False, "--help": False, "--hide": True}


@pytest.mark.parametrize(
    ("line", "own", "script"),
    [
        ("x.py", "", "x.py"),
        ("x.py --epochs 10 --budget 150s --json", "--budget=150s --json", "x.py --epochs 10"),
        ("--budget 150s x.py --epochs 10", "--budget=150s", "x.py --epochs 10"),
        ("--budget=150s x.py --budget=9s", "--budget=150s --budget=9s", "x.py"),
        ("--json x.py data.txt", "--json", "x.py data.txt"),
        ("-m pkg.train --lr 3 --json", "--json", "-m pkg.train --lr 3"),
        ("--json -m pkg.train -m x", "--json", "-m pkg.train -m x"),
        ("x.py -- --json --budget 3", "", "x.py --json --budget 3"),
        ("x.py --json -- --json -- y", "--json", "x.py --json -- y"),
        ("-- x.py --json", "", "x.py --json"),
        ("--json -- -m pkg --json", "--json", "-m pkg --json"),
        ("--unknown x.py", "--unknown", "x.py"),
        ("-h x.py", "-h", "x.py"),
        ("--help", "--help", ""),
        ("x.py --help -h", "", "x.py --help -h"),
        ("x.py --jsonlines --budget-s 3 -j", "", "x.py --jsonlines --budget-s 3 -j"),
        ("x.py --hide a --hide b", "--hide=a --hide=b", "x.py"),
        ("x.py --budget", "--budget", "x.py"),
        ("--budget", "--budget", ""),
        ("--budget x.py", "--budget=x.py", ""),
        ("", "", ""),
    ],
)
def test_split(line: str, own: str, script: str) -> None:
    assert split(line.split(), OPTIONS) == (own.split(), script.split())


@pytest.mark.parametrize(
    "tokens", [["x.py", "a b", ""], ["x.py", "", "--lr=1"], ["-m", "x", "*", "$HOME"]]
)
def test_the_scripts_tokens_reach_it_unchanged_and_in_order(tokens: list[str]) -> None:
    assert split(tokens, OPTIONS) == ([], tokens)


def test_parse_knows_scripts_and_modules() -> None:
    assert Target.parse(["x.py", "-m", "y"]) == Target(script="x.py", args=("-m", "y"))
    assert Target.parse(["-m", "pkg.train", "-x"]) == Target(module="pkg.train", args=("-x",))


@pytest.mark.parametrize("tokens", [[], ["-m"], ["-m", "x.py/y"], ["-m", "--lr"], ["-m", ""]])
def test_without_a_script_the_message_says_what_is_allowed(tokens: list[str]) -> None:
    with pytest.raises(UsageError, match="Expected"):
        Target.parse(tokens)


def test_a_script_that_is_there_resolves_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("package").mkdir()
    Path("package/__main__.py").touch()
    for target in (Target(script="train.py"), Target(script="package"), Target(module="package.x")):
        assert target.resolve() is target
    assert Target(module="json.tool").resolve()
    assert Target(module="nowhere_at_all").resolve(own_interpreter=False)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("trian.py", "Did you mean 'train.py'?"),
        ("sub/train.py", "folder 'sub' was not found"),
        ("empty", "without a __main__.py"),
        ("note.ipynb", "notebook"),
        ("pipe", "not a regular file"),
    ],
)
def test_what_python_cannot_run_is_refused(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("note.ipynb").touch()
    Path("empty").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(UsageError) as caught:
        Target(script=script).resolve()
    assert words in str(caught.value)
    assert f"'{script}'" in str(caught.value)


def test_a_program_is_told_from_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {
        "train.py": "#!/bin/sh\n",
        "train.sh": "#!/bin/sh\n",
        "train": "#!/usr/bin/env python3\n",
        "plain": "import torch\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
        Path(name).chmod(0o644 if name == "plain" else 0o755)
    assert Target.parse(["./train.sh", "-x"]) == Target(program="./train.sh", args=("-x",))
    assert Target.parse(["sh", "train.sh"]) == Target(program="sh", args=("train.sh",))
    for name in ("train.py", "train", "plain", "absent.py", "no_such_program"):
        assert Target.parse([name]) == Target(script=name)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingFile, match=r"'nowhere_at_all\.train'"):
        Target(module="nowhere_at_all.train").resolve()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("150s", 150), ("2m", 120), ("1h", 3600), ("0.5m", 30), (".5", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1", "2 m", "2d", "1e3", "nan", "٣s", "1h2"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Expected"):
        parse_duration(text)
