"""Notebooks: their cells run from top to bottom in one process, and are named where they count."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotlap import usercode
from hotlap.attach import notebook as runner
from hotlap.attach.entry import Script
from hotlap.attach.notebook import Cell, NotebookError, find_problem, plain_text, read_cells
from hotlap.cli.target import Target
from hotlap.errors import UsageError
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab
from hotlap.trace.source.liveness import AFTER_LOOP, find_reader
from tests.tiny_notebook import notebook, write


def write_cells(folder: Path, *cells: str) -> Path:
    path = folder / "a.ipynb"
    path.write_text(json.dumps(notebook(*cells)))
    return path


def run_plain(path: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = Script(path=path.name, args=args).command()
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=60)


def hotlap(path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hotlap", *words[:1], path.name, *words[1:]]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300)


def test_cells_are_numbered_as_jupyter_counts_those_that_it_runs(tmp_path: Path) -> None:
    path = write_cells(tmp_path, "a = 1", "", "  \n", "b = 2")
    assert read_cells(str(path)) == [Cell(1, "a = 1"), Cell(2, "b = 2")]


def test_the_older_format_is_read_as_well(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "input": ["a = 1\n", "b = 2"]}]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"worksheets": [{"cells": cells}], "nbformat": 3}))
    assert read_cells(str(path)) == [Cell(1, "a = 1\nb = 2")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "no cells"),
        ('{"cells": [1]}', "no cells"),
        (json.dumps(notebook()), "has no code"),
        (
            json.dumps({**notebook("x"), "metadata": {"kernelspec": {"language": "R"}}}),
            "language is r, not Python",
        ),
    ],
)
def test_what_is_no_notebook_is_refused_before_anything_starts(
    content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(content)
    with pytest.raises(NotebookError, match=words):
        read_cells(str(path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"'a.ipynb' cannot be run as a notebook: .*{words}"):
        Target(script="a.ipynb").resolve()


@pytest.mark.parametrize(
    ("text", "line"),
    [("!ls", 1), ("x = 1\n%run other.py", 2), ("names = !ls", 1), ("%%bash\nls", 1), ("f?", 1)],
)
def test_only_ipython_knows_what_a_magic_means(text: str, line: int) -> None:
    cells = [Cell(1, "x = 7 % 2"), Cell(2, text)]
    problem = find_problem(cells, knows_magics=False)
    assert problem is not None and f"cell 2, line {line}: only IPython" in problem
    assert find_problem(cells, knows_magics=True) is None


def test_what_is_no_python_is_told_with_its_cell_and_line() -> None:
    problem = find_problem([Cell(1, "x = 1"), Cell(2, "\ndef f(:")], knows_magics=True)
    assert problem == "cell 2, line 2: invalid syntax in `def f(:`"


def test_magics_that_only_show_are_left_out_and_lines_keep_their_numbers() -> None:
    assert plain_text("%matplotlib inline\nx = 1") == "\nx = 1"
    assert plain_text("%%time\nx = 1") == "\nx = 1"
    assert plain_text("x = 5 %config") == "x = 5 %config"
    assert (
        find_problem([Cell(1, "%load_ext autoreload\n%autoreload 2")], knows_magics=False) is None
    )


def test_a_cell_shows_its_last_value_and_reaches_what_other_cells_have_made(
    tmp_path: Path,
) -> None:
    path = write_cells(
        tmp_path,
        "import sys\nx = 3\nx",
        "x + 1;",
        "None",
        "import asyncio\nawait asyncio.sleep(0)\nclass A: pass",
        "import pickle\ntype(pickle.loads(pickle.dumps(A()))).__module__, sys.argv, x",
    )
    done = run_plain(path, "--epochs", "3")
    expected = "3\n('__main__', ['a.ipynb', '--epochs', '3'], 3)\n"
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


def test_a_module_beside_the_notebook_can_be_imported_and_none_of_hotlaps(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 5")
    path = write_cells(
        tmp_path,
        "import helper, sys\nhelper.VALUE, any('hotlap' in folder for folder in sys.path[:1])",
        "from __future__ import annotations",
        "def f(x: a_name_that_is_not_there): pass\nf.__annotations__",
    )
    done = run_plain(path)
    assert done.stdout == "(5, False)\n{'x': 'a_name_that_is_not_there'}\n"


def test_a_traceback_begins_in_the_cell_and_shows_its_lines(tmp_path: Path) -> None:
    path = write_cells(tmp_path, "x = 1", "def f():\n    raise ValueError('boom')\nf()")
    done = run_plain(path)
    frames = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    assert frames == [
        f'  File "{path}#cell2", line 3, in <module>',
        "    f()",
        f'  File "{path}#cell2", line 2, in f',
        "    raise ValueError('boom')",
    ]
    assert done.returncode == 1


def test_exit_codes_are_the_notebooks(tmp_path: Path) -> None:
    assert run_plain(write_cells(tmp_path, "import sys\nsys.exit(7)")).returncode == 7


def test_a_variable_that_another_cell_may_read_is_read_after_the_loop(tmp_path: Path) -> None:
    text = "for i in range(3):\n    loss = i\n"
    script = tmp_path / "a.py"
    script.write_text(text)
    assert find_reader(str(script), "loss", [2]) == ""
    name = f"{tmp_path}/a.ipynb{runner.MARK}1"
    runner._run_cell(name, text, {}, 0)
    assert usercode.is_cell(name)
    assert find_reader(name, "loss", [2]) == AFTER_LOOP


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_gives_the_bits_of_the_plain_notebook(tmp_path: Path, workers: int) -> None:
    path = write(tmp_path / "a.ipynb", workers=workers)
    plain, done = run_plain(path), hotlap(path, "run")
    assert plain.stdout.startswith("2410\nepoch 0: loss") and plain.returncode == 0
    assert (done.stdout, done.returncode) == (plain.stdout, 0)
    assert "did not import torch" not in done.stderr


@pytest.mark.slow
def test_steps_are_counted_and_the_cell_of_the_anchor_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", epochs=3)
    with Lab(Script(path=path.name, cwd=str(tmp_path))) as lab:
        seen = watch(lab, seconds=5.0, epochs=3)
    trace, facts = seen.trace, seen.trace.facts
    assert facts.optimizers[0].where == "a.ipynb#cell4:8"
    assert len(trace.steps) in range(46, 49)
    assert facts.planned_steps == 48


@pytest.mark.slow
def test_diagnose_and_tune_name_cells_and_write_the_plan_beside_the_notebook(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.ipynb", epochs=400)
    # Other tests run beside it: what is found must be far above their noise.
    path.write_text(path.read_text().replace(".sin().mul(3)", ".sin()" * 20 + ".mul(3)"))
    before = path.read_bytes()
    done = hotlap(path, "diagnose", "--budget", "15s", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    places = [each["where"] for each in (*found["findings"], *found["suspects"])]
    assert any(place.startswith("a.ipynb#cell") for place in places), (places, done.stderr)
    for _ in range(3):
        # Beside other tests one tuning may be undecided; the next one continues it.
        tuned = hotlap(path, "tune", "--budget", "30s", "--json")
        if json.loads(tuned.stdout)["outcome"] == "gain":
            break
    assert json.loads(tuned.stdout)["outcome"] == "gain", tuned.stderr
    assert (tmp_path / "a.ipynb.plan.toml").is_file()
    again = hotlap(path, "run", "--plan", "auto")
    assert "from a.ipynb.plan.toml" in again.stderr.replace(f"{tmp_path}/", "")
    assert path.read_bytes() == before
