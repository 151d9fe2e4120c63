"""What the user gives wrong is found before anything starts, and nothing is written."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

PLAN = 'schema = 1\n\n[host]\ncpu = "x"\ntorch = "y"\n\n'


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("open('started', 'w').close()\n")
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "trian.py"], "Did you mean 'train.py'"),
        (["run"], "no SCRIPT was given"),
        (["run", "-m", "no_such_package.train"], "no_such_package"),
        (["run", "--plan", "missing.toml", "train.py"], "missing.toml"),
        (["run", "--python", "/no/such/python", "train.py"], "/no/such/python"),
        (["tune", "train.py", "--accept", "exakt"], "Did you mean 'exact'"),
        (["tune", "train.py", "--only", "residant"], "Did you mean 'resident'"),
        (["tune", "train.py", "--budget", "soon"], "'soon' is not a duration"),
        (["tune", "train.py", "--technique", "nowhere:X"], "nowhere"),
        (["tune", "train.py", "--technique", "nonsense"], "module:NAME"),
        (["tune", "train.py", "--out", "no/such/folder/plan.toml"], "no/such/folder"),
        (["diagnose", "missing.py"], "missing.py"),
        (["diagnose", "train.py", "--budget", "-3"], "'-3' is not a duration"),
        (["run", ""], "no SCRIPT was given"),
        (["tune", "train.py", "--out", "train.py"], "is no plan file"),
        (["tune", "--budgets", "3", "train.py"], "Known: --accept, --all, --budget"),
        (["tune", "train.py", "--hide", "../*"], "patterns of files below"),
        (["diagnose", "train.py", "--hide", "/etc"], "patterns of files below"),
        (["explain", "residant"], "Did you mean 'resident'"),
        (["explain", "missing.toml"], "missing.toml"),
        (["tone", "train.py"], "Did you mean 'tune'"),
    ],
)
def test_it_is_refused_with_what_is_allowed(
    argv: list[str], words: str, hotlap: Run, tmp_path: Path
) -> None:
    before = files(tmp_path)
    done = hotlap(*argv)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[techniques.residant]\n", "Did you mean 'resident'"),
        ("[techniques.resident]\nmax_mb = 3\n", "Did you mean 'max_mib'"),
        ('[techniques.resident]\nmax_mib = "3"\n', "'3' is str. Allowed: int"),
        ("[techniques.resident]\nmax_mib = 0\n", "Allowed: 1 or more"),
        ('[techniques.optimizer]\nimplementation = "fussed"\n', "Did you mean 'fused'"),
        ("[techniques.optimizer]\n", "needs the option 'implementation'"),
        ("[environment]\nLD_PRELOAD = 'x'\n", "environment"),
        ("[techniques", "TOML"),
    ],
)
def test_a_wrong_plan_is_refused(text: str, words: str, hotlap: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN + text)
    before = files(tmp_path)
    for argv in (["run", "--plan", "plan.toml", "train.py"], ["explain", "plan.toml"]):
        done = hotlap(*argv)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert files(tmp_path) == before


def test_a_plan_of_another_host_is_cut_down_to_its_exact_part(hotlap: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        PLAN + '[techniques.resident]\n\n[techniques.optimizer]\nimplementation = "fused"\n'
    )
    done = hotlap("run", "--dry", "--plan", "plan.toml", "train.py")
    assert done.returncode == 0
    assert "exact techniques of plan.toml only" in done.stderr
    assert "fused" not in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("command", ["diagnose", "tune"])
def test_a_script_that_does_not_train_is_an_error_and_leaves_nothing(
    command: str, hotlap: Run, tmp_path: Path
) -> None:
    before = files(tmp_path)
    done = hotlap(command, "train.py", "--json")
    assert done.returncode == 1
    assert "ended without importing torch" in done.stderr
    assert done.stdout == ""
    assert files(tmp_path) == before


@pytest.mark.parametrize("command", ["diagnose", "tune"])
def test_switched_off_nothing_is_measured(command: str, hotlap: Run) -> None:
    done = hotlap(command, "train.py", HOTLAP_OFF="1")
    assert done.returncode == 2
    assert "HOTLAP_OFF is set" in done.stderr
