"""`hotlap train`: a recipe from a command line."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hotlap
from hotlap.cli import main
from hotlap.engine.memory import estimate

Run = Callable[..., subprocess.CompletedProcess[str]]

RECIPE = """
import torch
from torch.utils.data import TensorDataset
import hotlap

def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def task(*, lr: float = 0.1, batch_size: int = 16, epochs: int = 2):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, 5, generator=generator)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    return hotlap.Task(
        model=lambda: torch.nn.Linear(5, 2),
        loss=loss,
        data=data,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=batch_size,
        epochs=epochs,
        held_out=data,
    )
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    # For commands that are run in this process.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("recipe")
def test_the_document_of_several_ranks_is_alone_on_standard_output(hotlap: Run) -> None:
    Path("recipe.py").write_text(f"{RECIPE}\nimport os\nos.system('echo of a process')\n")
    done = hotlap("train", "recipe.py", "--epochs", "1", "--devices", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 7
    assert "of a process" in done.stderr


@pytest.mark.usefixtures("recipe")
def test_a_recipe_is_trained_and_its_parameters_can_be_given(
    hotlap: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RECIPE.replace("    return torch.nn", "    print('a loss')\n    return torch.nn")
    # Also what processes print that the recipe starts.
    other = "import os\nos.system('echo of a process')"
    Path("recipe.py").write_text(f"{text}\nprint('imported')\n{other}\n")
    done = hotlap("train", "recipe.py", "--epochs", "3", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for said in ("imported", "a loss", "of a process"):
        assert said in done.stderr
    assert report["schema"] == 1
    assert report["steps"] == 21
    assert set(report["final"]) == {"loss", "metrics"}
    assert report["final"]["metrics"]["loss"] < 0.5
    assert {row["name"]: row["state"] for row in report["techniques"]} == {
        "resident": "applied",
        "optimizer": "applied",
    }
    assert done.stderr.count("epoch ") == 3
    assert main(["train", "recipe.py", "--epochs", "3", "--lr", "1e-3", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["final"]["loss"] != report["final"]["loss"]


@pytest.mark.usefixtures("recipe")
def test_what_is_not_kept_is_said_and_as_many_steps_are_kept_as_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "this run will not be saved. Pass --run-dir FOLDER"
    assert main(["train", "recipe.py", "--epochs", "1"]) == 0
    assert words in capsys.readouterr().err
    saved = ["--save-every", "1steps", "--keep", "3"]
    assert main(["train", "recipe.py", "--epochs", "1", *saved]) == 2
    assert "needs a folder for checkpoints. Pass --run-dir FOLDER (" in capsys.readouterr().err
    assert main(["train", "recipe.py", "--epochs", "1", "--run-dir", "run", *saved]) == 0
    assert main(["train", "recipe.py", "--resume", "run", *saved]) == 0
    assert words not in capsys.readouterr().err
    kept = sorted(path.name for path in (tmp_path / "run" / "ckpt").glob("step-*"))
    assert kept == [f"step-{number:012d}" for number in (12, 13, 14)]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["recipe.py", "--lrr", "3"], "--batch-size, --epochs, --lr"),
        (["recipe.py", "--lr", "fast"], "fast"),
        (["recipe.py", "--batch-size", "0"], "batch_size=0"),
        (["missing.py"], "missing.py"),
        (["empty.py"], "no function `task`"),
        (["broken.py"], "ZeroDivisionError"),
        (["other.py"], "task() returned int"),
        (["-m", "recipe"], "not a recipe"),
        (["--plan", "missing.toml", "recipe.py"], "missing.toml"),
    ],
)
@pytest.mark.usefixtures("recipe")
def test_what_is_no_recipe_is_refused(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("task = 1 / 0")
    (tmp_path / "other.py").write_text("def task(): return 3")
    assert main(["train", *argv]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert ("Traceback" in shown.err) == (argv == ["broken.py"])
    assert f'File "{Path(hotlap.__file__).parent}' not in shown.err
    assert shown.out == ""


@pytest.mark.usefixtures("recipe")
def test_what_it_would_take_is_said_and_nothing_is_trained(
    hotlap: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = hotlap("train", "recipe.py", "--estimate", "--memory", "1GiB", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["fits"] is True
    assert found["memory_bytes"] == 2**30
    assert {(row["precision"], row["recompute"]) for row in found["rows"]} == {
        (precision, recompute)
        for precision in ("fp32", "bf16 autocast", "bf16 masters")
        for recompute in ("none", "whole", "selective")
    }
    assert "epoch 1" not in done.stderr
    # Looking for the largest batch is what takes long.
    quick = functools.partial(estimate.estimate, find_largest=False)
    monkeypatch.setattr(estimate, "estimate", quick)
    assert main(["train", "recipe.py", "--estimate", "--memory", "100"]) == 0
    assert "does NOT fit into 100 B" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--estimate", "--memory", "lots", "recipe.py"], "not a memory size"),
        (["--memory", "1GiB", "recipe.py"], "works only with --estimate or"),
    ],
)
@pytest.mark.usefixtures("recipe")
def test_an_estimate_of_nothing_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *argv]) == 2
    assert words in capsys.readouterr().err


def plain_run(path: Path, *, kind: str = "Adam", **names: str) -> None:
    """Save what a plain script has after one epoch of the recipe."""
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    for _ in range(7):
        optimizer.zero_grad()
        model(torch.randn(16, 5)).square().mean().backward()
        optimizer.step()
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 0}
    torch.save({names.get(part, part): value for part, value in parts.items()}, path)


@pytest.mark.usefixtures("recipe")
def test_a_run_of_a_plain_script_is_continued_and_then_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain_run(tmp_path / "old.pth", optimizer="adam")
    argv = ["train", "recipe.py", "--continue", "old.pth", "--run-dir", "run", "--resume", "auto"]
    assert main(argv) == 2
    assert "Pass --keys optimizer=KEY if another key holds it" in capsys.readouterr().err
    assert main([*argv, "--keys", "optimizer=adm"]) == 2
    assert "Did you mean 'adam'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*argv, "--keys", "optimizer=adam", "--json"]) == 0
    shown = capsys.readouterr()
    assert "optimizer: from 'adam', 2 parameters of Adam" in shown.err
    assert "epoch: from 'epoch' = 0, 1 epoch done, numbered from 0" in shown.err
    assert "epoch 2 of 2" in shown.err and "epoch 1 of 2" not in shown.err
    assert json.loads(shown.out)["steps"] == 14
    assert main([*argv, "--epochs", "3"]) == 0
    shown = capsys.readouterr()
    assert "resuming from" in shown.err and "epoch 3 of 3" in shown.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--continue", "old.pth"], "not the recipe's Adam"),
        (["--continue", "weights.pth"], "Use --weights 'weights.pth'"),
        (["--continue", "missing.pth"], "'missing.pth' was not found"),
        (["--continue", "old.pth", "--weights", "weights.pth"], "were both given"),
        (["--continue", "old.pth", "--keys", "optimiser=opt"], "Did you mean 'optimizer'?"),
        (["--continue", "old.pth", "--epochs-done", "1.5"], "Expected: an integer"),
        (["--epochs-done", "1"], "(the option --continue)"),
    ],
)
@pytest.mark.usefixtures("recipe")
def test_what_cannot_be_continued_is_refused(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain_run(tmp_path / "old.pth", kind="SGD")
    torch.save(torch.nn.Linear(5, 2).state_dict(), tmp_path / "weights.pth")
    assert main(["train", "recipe.py", *argv]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err and "epoch 1" not in shown.err
    assert shown.out == ""


@pytest.mark.usefixtures("recipe")
def test_a_run_records_the_recipes_parameters_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "recipe.py", "--run-dir", "run", "--lr", "0.5"]
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/hotlap", *words])
    assert main(words) == 0
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert about["task"]["parameters"] == {"lr": 0.5, "batch_size": 16, "epochs": 2}
    assert about["task"]["recipe"] == str(tmp_path / "recipe.py")
    assert about["command"] == ["hotlap", *words]
    capsys.readouterr()
    for wrong, said in (
        (["--run-dir", "other", "--track", "tensorbord"], "tracker 'tensorbord' is not known"),
        (["--track", "tensorboard"], "--track tensorboard needs a folder to record the run in"),
        (["--run-dir", "other", "--every", "0.1s"], "is too short"),
        (["--run-dir", "other", "--devices", "2", "--track", "no.where:X"], "was not found"),
        (["--run-dir", "recipe.py", "--devices", "2"], "recipe.py' is not a folder. Use --run-dir"),
    ):
        assert main(["train", "recipe.py", *wrong]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


CHANGES = f"""
import os
os.chdir(os.path.dirname(os.path.abspath(__file__)))
{RECIPE}
"""


def files(folder: Path) -> list[str]:
    """Return the names in a folder, those that Python writes left out."""
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def test_paths_of_the_command_line_are_those_of_the_folder_it_was_started_in(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = recipe.parent
    recipe.unlink()
    (here / "sub").mkdir()
    (here / "sub" / "recipe.py").write_text(CHANGES)
    torch.save(torch.nn.Linear(5, 2).state_dict(), here / "old.pt")
    begin = ["train", "sub/recipe.py", "--weights", "old.pt", "--page", "page.html"]
    for argv in (
        [*begin, "--run-dir", "run", "--resume", "auto"],
        ["train", "sub/recipe.py", "--epochs", "3", "--resume", "run"],
        ["export", "sub/recipe.py", "--from", "run", "--to", "new.pt"],
    ):
        monkeypatch.chdir(here)
        assert main(argv) == 0, capsys.readouterr().err
        assert Path.cwd() == here / "sub"
    assert files(here / "sub") == ["recipe.py"]
    assert files(here) == ["new.pt", "old.pt", "page.html", "run", "sub"]
    about = json.loads((here / "run" / "run.json").read_text())
    assert about["task"]["recipe"] == str(here / "sub" / "recipe.py")


def test_a_run_stays_in_its_folder_if_training_changes_to_another_one(
    recipe: Path,
) -> None:
    here = recipe.parent
    moves = "    import os\n    os.makedirs('away', exist_ok=True)\n    os.chdir('away')\n"
    begin = "def loss(model, batch):\n"
    recipe.write_text(RECIPE.replace(begin, begin + moves))
    assert main(["train", "recipe.py", "--run-dir", "run", "--epochs", "1"]) == 0
    assert Path.cwd() != here
    assert sorted(here.rglob("ckpt")) == [here / "run" / "ckpt"]
    assert not list(here.glob("away/**/run"))


@pytest.mark.parametrize("more", [[], ["--estimate"]])
@pytest.mark.usefixtures("recipe")
def test_a_device_that_torch_does_not_know_is_refused_before_the_recipe_is_read(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("recipe.py").write_text("1 / 0\ndef task(): ...\n")
    assert main(["train", "recipe.py", "--device", "gpu", *more]) == 2
    shown = capsys.readouterr().err
    assert "device='gpu' is not known" in shown and "ZeroDivisionError" not in shown
