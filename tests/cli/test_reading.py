"""Plain command lines are read without the library that reads all of them, and to the same end."""

import subprocess
import sys
from typing import Any

import pytest

from hotlap.cli.command import Command, check_values, read_plain
from hotlap.cli.parser import read
from hotlap.cli.run import COMMAND
from hotlap.cli.tune import COMMAND as TUNE
from hotlap.errors import UsageError


def given_to(reader: Any, command: Command, argv: str) -> tuple[dict[str, Any], Any]:
    found = reader(command, argv.split())
    if found is None:
        return {"read": False}, None
    values = dict(found.values)
    if hasattr(found.function, "keywords"):
        values |= found.function.keywords
    return values, found.script


@pytest.mark.parametrize(
    "argv",
    [
        "train.py",
        "train.py --epochs 10 --lr=0.1",
        "--plan auto train.py",
        "train.py --plan auto --dry --epochs 3",
        "--plan=fast.toml -m package.train --plan-b",
        "--technique a:B --technique=c:D train.py",
        "train.py -- --plan x --dry",
        "train.py --help",
        "--python /usr/bin/python3 train.py",
        "--dry",
    ],
)
def test_both_readers_agree(argv: str) -> None:
    quick = given_to(read_plain, COMMAND, argv)
    assert quick == given_to(read, COMMAND, argv)
    assert quick[0] != {"read": False}


@pytest.mark.parametrize(
    "argv",
    [
        "--help",
        "--plna x train.py",
        "--plan",
        "train.py --plan",
        "--plan a --plan b train.py",
        "--dry=true train.py",
        "-x train.py",
    ],
)
def test_what_is_odd_is_left_to_the_library(argv: str) -> None:
    assert read_plain(COMMAND, argv.split()) is None


def test_so_is_a_command_whose_options_are_more_than_plain() -> None:
    assert read_plain(TUNE, ["train.py"]) is None


def test_an_empty_value_is_refused_by_both() -> None:
    for reader in (read_plain, read):
        with pytest.raises(UsageError, match="--plan is empty"):
            reader(COMMAND, ["--plan=", "train.py"])


@pytest.mark.parametrize(("option", "is_imported"), [("--dry", False), ("--dry=1", True)])
def test_run_does_not_import_what_it_does_not_need(option: str, is_imported: bool) -> None:
    code = (
        "import sys; from hotlap.cli import main; main(sys.argv[1:]);"
        "print([name for name in ('cyclopts', 'rich', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", option, __file__], capture_output=True, text=True
    )
    assert ("cyclopts" in done.stdout) == is_imported, done.stdout + done.stderr
    assert "torch" not in done.stdout


def test_a_space_may_have_any_number_of_values_and_a_file_name_may_not() -> None:
    space = f"lr=choice({','.join(f'{n}e-4' for n in range(100))})"
    check_values([f"--space={space}"])
    with pytest.raises(UsageError, match="a file name of 300 bytes"):
        check_values(["--page=" + "x" * 300])
