"""What the user gives wrong is found before anything starts, and nothing is written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.cli import main

Run = Callable[..., subprocess.CompletedProcess[str]]

PLAN = 'schema = 1\n\n[host]\ncpu = "x"\ntorch = "y"\n\n'


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("open('started', 'w').close()\n")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the script, to be in: commands run in this process, which starts none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command says that is refused."""
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert shown.out == ""
    return shown.err


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
        (["tune", "train.py", "--budget", "soon"], "--budget 'soon' is not a duration"),
        (["tune", "train.py", "--technique", "nowhere:X"], "nowhere"),
        (["tune", "train.py", "--technique", "nonsense"], "module:NAME"),
        (["tune", "train.py", "--out", "no/such/folder/plan.toml"], "no/such/folder"),
        (["diagnose", "missing.py"], "missing.py"),
        (["diagnose", "train.py", "--budget", "-3"], "'-3' is not a duration"),
        (["diagnose", "train.py", "--profile", "cudda"], "Did you mean 'cuda'"),
        (["diagnose", "train.py", "--trace", "no/such/folder"], "no/such' was not found"),
        (["diagnose", "train.py", "--memory", "--trace", "traces"], "--memory cannot be used with"),
        (["run", ""], "no SCRIPT was given"),
        (["tune", "train.py", "--out", "train.py"], "is not a plan file"),
        (["tune", "--budgets", "3", "train.py"], "Expected: --accept, --again, --all, --budget"),
        (["tune", "train.py", "--hide", "../*"], "a relative path or pattern of files below"),
        (["diagnose", "train.py", "--hide", "/etc"], "a relative path or pattern of files below"),
        (["explain", "residant"], "Did you mean 'resident'"),
        (["explain", "missing.toml"], "missing.toml"),
        (["tone", "train.py"], "Did you mean 'tune'"),
        (["verify", "plain", "no.toml", "train.py"], "no.toml' was not found"),
        (["verify", "plain", "plain"], "no SCRIPT was given"),
        (["verify", "plain", "plain", "train.py", "--steps", "3"], "Expected: 16 or more"),
        (["verify", "plain", "plain", "train.py", "--accept", "exakt"], "Did you mean 'exact'"),
        (["check", "train.py"], "train.plan.toml' was not found"),
        (["check", "train.py", "--plan", "auto"], "train.plan.toml' was not found"),
    ],
)
def test_it_is_refused_with_what_is_allowed(
    argv: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here)
    assert words in refused(argv, capsys)
    assert files(here) == before


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ([], "without a list `traceEvents`"),
        (["--memory"], "--memory cannot be used with 'trace.json', which is a trace"),
        (["--trace", "traces", "--profile", "cpu"], "--profile, --trace cannot be used with"),
        (["--epochs", "5"], "which takes no arguments. Remove: --epochs 5"),
    ],
)
def test_a_trace_is_read_and_not_run(
    rest: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "trace.json").write_text("{}")
    before = files(here)
    assert words in refused(["diagnose", "trace.json", *rest], capsys)
    assert files(here) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[techniques.residant]\n", "Did you mean 'resident'"),
        ("[techniques.resident]\nmax_mb = 3\n", "Did you mean 'max_mib'"),
        ('[techniques.resident]\nmax_mib = "3"\n', "'3' has type str. Expected: int"),
        ("[techniques.resident]\nmax_mib = 0\n", "Expected: 1 or more"),
        ('[techniques.optimizer]\nimplementation = "fussed"\n', "Did you mean 'fused'"),
        ("[techniques.optimizer]\n", "needs the option 'implementation'"),
        ("[environment]\nLD_PRELOAD = 'x'\n", "environment"),
        ("[techniques", "TOML"),
    ],
)
def test_a_wrong_plan_is_refused(
    text: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plan.toml").write_text(PLAN + text)
    before = files(here)
    for argv in (["run", "--plan", "plan.toml", "train.py"], ["explain", "plan.toml"]):
        assert words in refused(argv, capsys)
    assert files(here) == before


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
@pytest.mark.usefixtures("here")
def test_switched_off_nothing_is_measured(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOTLAP_OFF", "1")
    assert "`HOTLAP_OFF` is set" in refused([command, "train.py"], capsys)
