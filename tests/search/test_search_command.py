"""`hotlap search`: real trials of a recipe, in processes that can be killed."""

import errno
import importlib.util
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap import cli
from hotlap.checkpoint.owner import is_alive
from hotlap.engine.training_report import EpochDone
from hotlap.host.facts import Host
from hotlap.search import rung
from hotlap.search.asking import Asked, Request, ask
from hotlap.search.job_order import Order, outcome_path
from hotlap.search.journal import read
from hotlap.search.local import LocalWorkers
from hotlap.search.propose import grid_points, propose
from hotlap.search.state import Job, SearchState, TrialState
from hotlap.search.study import JOURNAL, read_study

RECIPE = Path(__file__).with_name("searched_recipe.py")
PLAIN = """
import hotlap

def task(*, lr: float = 0.1, steps: int = 9, seed: int = 0):
    return hotlap.Task(model=list, loss=max, data=[0], optimizer=list, batch_size=1, steps=steps)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copy(RECIPE, tmp_path / "recipe.py")
    (tmp_path / "plain.py").write_text(PLAIN)
    return tmp_path


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "hotlap", "search", "recipe.py", "--json", *argv]


def searched(here: Path, *argv: str) -> dict[str, Any]:
    done = subprocess.run(command(*argv), cwd=here, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def alive(here: Path) -> list[int]:
    """Return the processes that ever imported the recipe in this folder, and live."""
    pids = (int(path.name.partition("-")[2]) for path in here.glob("seen-*"))
    return [pid for pid in pids if is_alive(pid)]


def figures(found: dict[str, Any]) -> Any:
    """Return what of a result does not depend on time."""
    keys = ("number", "parameters", "state", "step", "value", "rungs", "seeds")
    trials = [{key: trial[key] for key in keys} for trial in found["trials"]]
    return trials, found["best"]["number"], found["best"]["value"], found["steps"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no parameter of 'plain.py' has a search space"),
        (["--space", "lr=loguniform(1,0.1)"], "is an empty range"),
        (["--space", "lr=uniform(0,1)", "--method", "ahsa"], "Did you mean 'asha'"),
        (["--space", "lr=uniform(0,1)", "--max-steps", "10"], "more than the 9 steps"),
        (["--space", "lr=uniform(0,1)", "--schedule", "rungs"], "Did you mean 'rung'"),
        (["--space", "lr=uniform(0,1)", "--method", "grid", "--points", "0"], "--points 0"),
        (["--space", "lr=uniform(0,1)", "--objective", "accuracy"], "max:accuracy"),
        (["--space", "lr=uniform(0,1)", "--objective", "max:acc"], "'acc' is not known"),
        (["--space", "lr=uniform(0,1)", "--objective", "loss", "--objective", "acc"], "max:acc"),
        (
            ["--space", "lr=uniform(0,1)", "--objective", "loss", "--objective", "min:loss"],
            "'loss' 2 times",
        ),
        (["--space", "lr=uniform(0,1)", "--seeds", "2"], "--seeds 2"),
        (["--space", "lr=uniform(0,1)", "--workers", "0"], "--workers 0"),
        (["--space", "lr=uniform(0,1)", "--trials", "0"], "--trials 0"),
        (["--space", "lr=uniform(0,1)", "--columns", "vlaue"], "Did you mean 'value'"),
        (["--space", "lr=uniform(0,1)", "--lr", "2"], "--lr sets a fixed value"),
        (["--space", "steps=choice(9,x)"], "is an int, but Choice(values=(9, 'x')) gives 'x'"),
        (["--space", "lr=choice(yes,no)"], "is a float, but Choice(values=('yes', 'no'))"),
        (["--space", "lr=uniform(0,1)", "--device", "tpu"], "device='tpu'"),
        (["--space", "lr=uniform(0,1)", "--run-dir", "."], "does not hold a search"),
        (["--space", "lr=uniform(0,1)", "--page", "no/p.html"], "no/p.html"),
        (["--range-test", "--page", "p.html"], "--page p.html cannot be used with --range-test"),
        (
            ["--range-test", "--trials", "9", "--method=asha"],
            "--trials, --method cannot be used with --range-test",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_starts(
    here: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(here.rglob("*"))
    assert cli.main(["search", "plain.py", *argv]) == 2
    out, err = capsys.readouterr()
    assert words in err and not out and "Traceback" not in err
    assert {path for path in here.rglob("*") if "__pycache__" not in path.parts} == before


def test_tpe_without_optuna_says_how_to_install_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    argv = ["search", "plain.py", "--space", "lr=uniform(0,1)", "--method", "tpe"]
    assert cli.main(argv) == 2
    assert "pip install optuna" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_finds_a_better_configuration(here: Path) -> None:
    argv = ("--trials", "6", "--workers", "2", "--objective", "max:accuracy")
    found = searched(here, *argv, "--page", "search.html")
    assert found["best"]["value"] > 0.8 and found["best"]["step"] == 24
    assert found["comparison"]["verdict"] == "better"
    assert found["stopped_early"] >= 3 and 2 * found["steps"] <= found["full_steps"]
    assert not alive(here)
    # What was found, trained by the command that is printed, is what the trial gave.
    words = found["command"].split()
    assert words[:3] == ["hotlap", "train", "recipe.py"]
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"], cwd=here, capture_output=True, text=True
    )
    trained = json.loads(done.stdout)["final"]["metrics"]
    assert trained["accuracy"] == found["best"]["value"]
    # Each trial is a run with its record.
    best = here / "recipe.search" / "trials" / f"{found['best']['number']:04}"
    about = json.loads((best / "run.json").read_text())["task"]
    assert about["parameters"]["lr"] == found["best"]["parameters"]["lr"]
    assert found["command"] in (here / "search.html").read_text()
    # The same command has nothing left to do.
    processes = len(list(here.glob("seen-*")))
    again = searched(here, *argv)
    assert {**again, "made": None} == {**found, "made": None}
    assert len(list(here.glob("seen-*"))) == processes + 1


@pytest.mark.slow
def test_a_promoted_trial_goes_on_with_a_longer_schedule(here: Path) -> None:
    argv = ("--trials", "5", "--seeds", "0", "--decays", "--max-steps", "24", "--grace", "8")
    found = {
        schedule: searched(here, *argv, "--schedule", schedule, "--run-dir", schedule)
        for schedule in ("whole", "rung")
    }
    whole, own = (found[schedule]["trials"] for schedule in ("whole", "rung"))
    assert all(a["rungs"]["8"] != b["rungs"]["8"] for a, b in zip(whole, own, strict=True))
    promoted = [trial for trial in own if len(trial["rungs"]) > 1]
    assert promoted and all(trial["step"] == 24 for trial in promoted)
    log = (here / "rung" / "trials" / f"{promoted[0]['number']:04}" / "log.txt").read_text()
    assert "resuming from" in log


@pytest.mark.slow
def test_out_of_memory_nan_and_crashes_are_results(here: Path) -> None:
    space = "fault=choice('',crash,exit,memory,nan)"
    found = searched(
        here, "--lr", "0.5", "--space", space, "--method", "grid", "--objective", "max:accuracy"
    )
    states = {t["parameters"]["fault"]: (t["state"], t["error"]) for t in found["trials"]}
    assert {fault: state for fault, (state, _) in states.items()} == {
        "": "done",
        "crash": "crash",
        "exit": "crash",
        "memory": "memory",
        "nan": "nan",
    }
    assert "RuntimeError: the recipe crashes" in states["crash"][1]
    assert "exit code 3" in states["exit"][1]
    assert found["failures"] == {"crash": 2, "memory": 1, "nan": 1}


@pytest.mark.slow
def test_an_objective_that_evaluation_does_not_give_ends_the_search(here: Path) -> None:
    text = (here / "recipe.py").read_text()
    text = text.replace(
        'metrics={"accuracy": accuracy}', 'evaluate=lambda m, b: {"accuracy": accuracy(m, b)}'
    )
    (here / "recipe.py").write_text(text)
    done = subprocess.run(
        command("--objective", "max:acuracy"), cwd=here, capture_output=True, text=True
    )
    assert done.returncode == 2 and not done.stdout
    assert "'acuracy', which is not measured. Expected: accuracy" in done.stderr
    # The training loss does not take the place of the held-out one.
    done = subprocess.run(command("--objective", "loss"), cwd=here, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert "'loss', which is not measured. Expected: accuracy" in done.stderr


def kill_once(here: Path, argv: list[str], after_s: float, number: int) -> bool:
    """Start a search, kill it after a while; return False if it had ended before."""
    with open(here / "log.txt", "ab") as log:
        process = subprocess.Popen(command(*argv), cwd=here, stdout=log, stderr=log)
        try:
            process.wait(after_s)
            return False
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            process.wait(60)
    until = time.monotonic() + 15
    while alive(here):
        assert time.monotonic() < until, "a trial outlived its search"
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_a_search_that_is_killed_at_random_ends_as_one_that_is_not(here: Path) -> None:
    argv = ["--trials", "4", "--seeds", "0", "--objective", "max:accuracy", "--wait-s", "0.002"]
    whole = searched(here, *argv, "--run-dir", "whole")
    generator, kills = random.Random(0), 0
    while kills < 3:
        kind = generator.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL])
        after_s = generator.uniform(2.0, 9.0)
        kills += kill_once(here, [*argv, "--run-dir", "killed"], after_s, kind)
        if kills < 3 and not read_study(here / "killed").open:
            break
    found = searched(here, *argv, "--run-dir", "killed")
    assert kills >= 2
    assert figures(found) == figures(whole)
    jobs = [
        [r for r in read(here / name / JOURNAL)[0] if r["kind"] == "job"]
        for name in ("whole", "killed")
    ]
    assert jobs[0] == jobs[1]
    assert not alive(here)


@pytest.mark.slow
def test_a_trial_that_is_asked_to_end_goes_on_and_none_outlives_its_workers(here: Path) -> None:
    words = ("--lr", "0.5", "--wait-s", "0.02")
    order = Order("recipe.py", words, str(here / "0"), 24, 0, ("loss",), {}, "cpu", 1)
    workers = LocalWorkers(1)
    workers.start(Job(0, 0), order)
    until = time.monotonic() + 60
    while not list((here / "0").glob("measured-*")) and time.monotonic() < until:
        time.sleep(0.02)
    (pid,) = alive(here)
    os.kill(pid, signal.SIGTERM)
    (outcome,) = workers.wait()
    assert outcome.state == "done" and outcome.step == 24
    assert "resuming from" in (here / "0" / "log.txt").read_text()
    # Closed while a trial runs: it saves where it stands, and is gone.
    workers.start(Job(1, 0), replace(order, folder=str(here / "1")))
    while not list((here / "1").glob("measured-*")) and time.monotonic() < until:
        time.sleep(0.02)
    workers.close()
    assert not alive(here) and workers.free == 1
    assert len(list((here / "1" / "ckpt").glob("step-*"))) == 1


@pytest.mark.slow
def test_a_trial_that_is_killed_with_its_search_goes_on_from_its_checkpoint(here: Path) -> None:
    argv = ["--trials", "1", "--seeds", "0", "--method", "random", "--wait-s", "0.05"]
    process = subprocess.Popen(command(*argv), cwd=here, stderr=subprocess.DEVNULL)
    root = here / "recipe.search" / "trials" / "0000" / "ckpt"
    until = time.monotonic() + 60
    while not list(root.glob("step-*/MANIFEST.json")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # The trial has more than ten seconds to train, and does not.
    time.sleep(2)
    assert not alive(here)
    found = searched(here, *argv)
    assert found["best"]["step"] == 24
    log = (here / "recipe.search" / "trials" / "0000" / "log.txt").read_text()
    assert "resuming from" in log


def measured(epoch: int) -> EpochDone:
    """Return an epoch of eight steps that took ten seconds."""
    return EpochDone(
        epoch=epoch,
        steps=8,
        seconds=10.0,
        samples_per_s=1.0,
        loss=0.5,
        held_out={},
        left_s=0.0,
        peak_memory_bytes=0,
    )


def test_the_seconds_of_a_trial_are_those_of_all_its_processes(tmp_path: Path) -> None:
    order = Order("recipe.py", (), str(tmp_path), 24, 0, ("loss",), {}, "cpu", 1)
    first = rung._Job(order)
    for epoch in (1, 2):
        first._measure(measured(epoch))
    # It was killed before its second epoch was saved, which is trained again.
    second = rung._Job(order)
    second._measure(measured(2))
    # And once more; what it was promoted to comes on top.
    third = rung._Job(order)
    third._measure(measured(3))
    promoted = rung._Job(replace(order, until=32))
    promoted._measure(measured(4))
    found = {
        path.name: json.loads(path.read_text())["seconds"] for path in tmp_path.glob("measured-*")
    }
    assert found == {"measured-24.json": 30.0, "measured-32.json": 40.0}


@pytest.mark.parametrize(
    ("words", "share_of", "steps"),
    [
        ((), 24, [2, 8, 24]),
        (("--batch-size", "8"), 24, [4, 16, 48]),
        # Two shares of two steps are the same step.
        (("--batch-size", "64", "--epochs", "1"), 24, [1, 1, 2]),
        # With --max-steps, every trial is compared after as many steps.
        (("--batch-size", "8"), None, [2, 8, 24]),
    ],
)
def test_a_trial_is_compared_after_shares_of_its_own_steps_and_trained_to_its_own_end(
    words: tuple[str, ...], share_of: int | None, steps: list[int], here: Path
) -> None:
    order = Order("recipe.py", words, "0", 0, 0, ("loss",), {}, "cpu", 1, share_of=share_of)
    found = [rung._Job(replace(order, until=until)).do() or {} for until in (2, 8, 24)]
    assert [each["step"] for each in found] == steps
    assert [each["is_over"] for each in found] == [False, False, share_of is not None]
    assert {each["whole_steps"] for each in found} == {max(steps) * (1 if share_of else 2)}


def test_no_configuration_of_a_small_space_is_trained_twice(here: Path) -> None:
    def asked(method: str, *space: str, trials: int | None = None) -> Asked:
        request = Request("recipe.py", method=method, space=space, trials=trials)
        return ask(request, Host(cpu="x", cores=2))

    # The recipe's own width is 8, its batch size 16.
    small = ("width=choice(8,16,32)", "lr=choice(0.1,0.01)")
    has_optuna = importlib.util.find_spec("optuna") is not None
    for method in ("random", "asha", "grid", *(["tpe"] if has_optuna else [])):
        found = asked(method, *small)
        assert found.spec.trials == 7, method
        assert ("the space has 7 configurations, so there are 7 trials" in found.notes) == (
            method != "grid"
        )
        state = SearchState(found.spec)
        for number in range(7):
            state.trials.append(TrialState(number, propose(found.space, state)))
        assert len({json.dumps(trial.values) for trial in state.trials}) == 7
    # A point is tried whichever were tried before.
    grid = asked("grid", *small)
    known = [TrialState(0, grid.spec.defaults or {}), TrialState(1, grid_points(grid.space, 3)[0])]
    third = propose(grid.space, SearchState(grid.spec, [*known, TrialState(2, known[0].values)]))
    assert third == grid_points(grid.space, 3)[1]
    # A point that a grid has twice is tried once.
    twice = asked("grid", "width=choice(16,16,32)", "lr=choice(0.1)")
    state = SearchState(twice.spec)
    for number in range(twice.spec.trials):
        state.trials.append(TrialState(number, propose(twice.space, state)))
    assert [trial.values["width"] for trial in state.trials] == [8, 16, 32]
    # The recipe's own configuration is a point of the grid.
    assert asked("grid", "width=choice(8,16,32)", "lr=choice(0.0001,0.1)").spec.trials == 6
    # What has more configurations than trials is left as it is.
    assert asked("random", *small, trials=6).spec.trials == 6
    assert asked("random", "lr=uniform(0.1,0.2)", trials=30).spec.trials == 30


def test_what_could_not_be_noted_is_trained_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order("recipe.py", (), str(here / "trial"), 8, 0, ("loss",), {}, "cpu", 1)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as full:
        full.setattr(rung, "write_json", fail)
        found = rung._Job(order).do()
    assert found is not None and found["state"] == "storage"
    again = rung._Job(order).do()
    assert again is not None and again["state"] == "done"


CHILD = """
import subprocess
import hotlap

def task(*, lr: float = 0.1):
    child = subprocess.Popen(["sleep", "600"])
    open("child", "w").write(str(child.pid))
    raise RuntimeError("the recipe crashes")
"""


@pytest.mark.slow
def test_what_a_recipe_has_started_ends_with_its_trial(here: Path) -> None:
    (here / "child.py").write_text(CHILD)
    workers = LocalWorkers(1)
    workers.start(Job(0, 0), Order("child.py", (), str(here / "0"), 9, 0, ("loss",), {}, "cpu", 1))
    (outcome,) = workers.wait()
    assert outcome.state == "crash"
    pid, until = int((here / "child").read_text()), time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_trials_begin_where_the_search_does_if_the_recipe_changes_the_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "sub").mkdir()
    moves = "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))\n"
    (here / "sub" / "moves.py").write_text(moves + PLAIN)
    asked = ask(Request("sub/moves.py", space=("lr=uniform(0,1)",)), Host.detect())
    assert Path.cwd() == here and asked.spec.recipe == "sub/moves.py"

    class Told(io.BytesIO):
        pid = 0

        def __init__(self, command: list[str], **given: Any) -> None:
            super().__init__()
            self.stdin = self

        def close(self) -> None:
            return None

    processes: list[Told] = []

    def start(command: list[str], **given: Any) -> Told:
        processes.append(Told(command, **given))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    order = Order("sub/moves.py", (), "study/0", 24, 0, ("loss",), {}, "cpu", 1)
    outcome = outcome_path(replace(order, folder=str(here / "study/0")))
    outcome.parent.mkdir(parents=True)
    outcome.write_text('{"state": "storage", "error": "it was full", "until": 24}')
    LocalWorkers(1).start(Job(0, 0), order)
    # What an earlier process has left is not this one's outcome.
    assert not outcome.exists()
    told = json.loads(processes[0].getvalue())
    assert told["recipe"] == str(here / "sub" / "moves.py")
    assert told["folder"] == str(here / "study" / "0")
