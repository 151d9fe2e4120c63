"""Wrong options and wrong recipes are answered before anything starts, in plain words."""

import os
import sys
from pathlib import Path

import pytest

import hotlap
from hotlap.cli import main

RECIPE = """
import torch
from torch.utils.data import TensorDataset
import hotlap

def task(*, lr: float = 0.1, epochs: int = 1):
    data = TensorDataset(torch.zeros(64, 5), torch.zeros(64).long())
    return hotlap.Task(
        model=lambda: torch.nn.Linear(5, 2),
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=data,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        batch_size=16,
        epochs=epochs,
    )
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["hotlap", "train", "recipe.py", "--run-dir", "hotlaps-own"])
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    before = sorted(os.listdir())
    assert main(argv) == 2
    shown = capsys.readouterr()
    # Of a traceback only what is the user's.
    assert f'File "{Path(hotlap.__file__).parent}' not in shown.err
    assert "defect" not in shown.err
    assert shown.out == ""
    assert sorted(set(os.listdir()) - {"__pycache__"}) == before
    return shown.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "recipe.py", "--save-evry", "1epoch"], ["--epochs, --lr", "'--save-every'"]),
        (["train", "recipe.py", "--rundir=run"], ["--epochs, --lr", "'--run-dir', an option of"]),
        (["train", "recipe.py", "--epoch", "3"], ["Did you mean '--epochs'"]),
        (["train", "--save-evry", "1epoch", "recipe.py"], ["Did you mean '--save-every'"]),
        (["export", "recipe.py", "--from", "x", "--to", "y", "--overwite"], ["'--overwrite'"]),
        (["train", "recipe.py", "--keep", "1.5"], ["--keep 1.5", "an integer"]),
        (["train", "recipe.py", "--keep", "1e0"], ["--keep 1e0", "an integer"]),
        (["train", "recipe.py", "--keep", "0"], ["keep=0"]),
        (["train", "recipe.py", "--epochs", "15e-1"], ["--epochs 15e-1", "an integer"]),
        (["train", "recipe.py", "--run-dir", ""], ["--run-dir is empty"]),
        (["train", "recipe.py", "--run-dir="], ["--run-dir is empty"]),
        (["train", "recipe.py", "--run-dir", "x" * 300], ["a file name of 300 bytes"]),
        (["train", "recipe.py", "--run-dir", "recipe.py"], ["recipe.py", "not a folder"]),
        (["train", "recipe.py", "--technique", ".:x"], ["'.:x'", "module:NAME"]),
        (["train", "recipe.py", "--technique", "broken:X"], ["broken", "ZeroDivisionError"]),
        (["run", "x" * 300], ["File name too long"]),
        (["explain", "x" * 300], ["a file name of 300 bytes"]),
        (["run", "recipe.py", "--lr", "3"], ["is a recipe", "`hotlap train recipe.py --lr 3`"]),
    ],
)
def test_a_wrong_option_is_answered_with_what_was_meant(
    argv: list[str], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text("1 / 0")
    shown = refused(argv, capsys)
    for word in words:
        assert word in shown


@pytest.mark.parametrize("command", ["train", "run", "export", "tune", "diagnose"])
def test_a_current_folder_that_was_removed_is_said(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert main([command, "/no/such/recipe.py"]) == 2
    finally:
        os.chdir(folder)
    assert "the current folder no longer exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("import hotlap\n", "import hotlap, sys\nsys.exit()\n", "sys.exit() while it was imported"),
        (
            "    return hotlap",
            "    raise SystemExit(0)\n    return hotlap",
            "sys.exit(0) in task()",
        ),
        (
            "    return hotlap",
            "    next(iter(()))\n    return hotlap",
            "the recipe raised StopIteration at",
        ),
        (
            "import hotlap\n",
            "import argparse, hotlap\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('--needed', required=True)\nparser.parse_args()\n",
            "reads the command line with argparse while it was imported",
        ),
        ("data=data", "data=hotlap_bad(data, 64.0)", "returned 64.0. Return the number of samples"),
        ("data=data", "data=hotlap_bad(data, None)", "returned None. Return the number of samples"),
        ("data=data", "data=data, held_out=hotlap_bad(data, -1)", "of the task's held_out"),
    ],
)
def test_a_recipe_that_cannot_be_trained_says_why(
    old: str, new: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = (
        "\nclass hotlap_bad(torch.utils.data.Dataset):\n"
        "    def __init__(self, data, length): self.data, self.length = data, length\n"
        "    def __len__(self): return self.length\n"
        "    def __getitem__(self, index): return self.data[index]\n"
    )
    assert old in RECIPE
    (folder / "recipe.py").write_text(RECIPE.replace(old, new) + bad)
    assert words in refused(["train", "recipe.py"], capsys)


def test_a_recipe_that_ends_the_process_while_it_is_trained_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipe.py").write_text(RECIPE.replace("torch.nn.Linear(5, 2)", "exit(0)"))
    assert main(["train", "recipe.py"]) == 1
    assert "the recipe called sys.exit(0) at" in capsys.readouterr().err


def test_a_recipe_reads_its_own_command_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = "import sys\nprint(sys.argv)\n" + RECIPE.replace(
        "    data =", "    print(sys.argv)\n    data ="
    ).replace("torch.nn.Linear(5, 2)", "print(sys.argv) or torch.nn.Linear(5, 2)")
    (folder / "recipe.py").write_text(seen)
    before = list(sys.argv)
    assert main(["train", "recipe.py", "--run-dir", "run", "--lr", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["['recipe.py', '--lr', '0.5']"] * 2
    assert set(lines[2:]) >= {lines[0]}
    assert sys.argv == before


def test_a_script_is_not_imported_to_see_that_it_is_no_recipe(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "script.py").write_text("open('started', 'w').close()\n")
    shown = refused(["train", "script.py"], capsys)
    assert "no function `task`" in shown
    assert "hotlap run script.py" in shown


@pytest.mark.parametrize(
    ("end", "runs"),
    [
        ("", False),
        ("torch.manual_seed(0)\n", False),
        ("hotlap.train(task())\n", True),
        ("if __name__ == '__main__':\n    print(task())\n", True),
    ],
)
def test_a_recipe_with_a_part_of_its_own_can_be_run(
    end: str, runs: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipe.py").write_text(RECIPE + end)
    assert main(["run", "--dry", "recipe.py"]) == (0 if runs else 2)
    assert ("is a recipe" in capsys.readouterr().err) is not runs
