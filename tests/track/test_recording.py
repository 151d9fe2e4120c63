"""What a training leaves in its folder: what it was, and the losses of all its steps."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import hotlap
from hotlap.engine.state import saving
from hotlap.errors import UsageError
from hotlap.track import writer
from hotlap.track.losses import DeferredLosses
from hotlap.track.run_file import FINISHED, MEASURED, RunInfo
from hotlap.track.runs import Run, read_run
from hotlap.track.surroundings import code_in, driver_version
from tests.engine.test_device_runs import task as device_task
from tests.engine.test_resume import task
from tests.fake_device import FakeCuda


def short(**options: Any) -> hotlap.Task:
    return task(**{"schedule": None, **options})


def curve(run: Run, name: str) -> dict[int, float]:
    found = run.curves[name]
    return dict(zip(found.steps, found.values, strict=True))


def test_a_run_leaves_its_losses_and_what_it_was(tmp_path: Path) -> None:
    losses = [float(step.loss) for step in hotlap.steps(short(steps=10))]
    done = hotlap.train(
        short(steps=10, held_out=short().data), run_dir=tmp_path, about={"recipe": "recipe.py"}
    )
    run = read_run(tmp_path)
    assert curve(run, "step/loss") == dict(enumerate(losses, 1))
    assert curve(run, "epoch/loss") == {7: done.epochs[0].loss, 10: done.epochs[1].loss}
    assert curve(run, "evaluation/loss") == {
        7: done.epochs[0].held_out["loss"],
        10: done.epochs[1].held_out["loss"],
    }
    info = run.info
    assert info is not None and info.state == "finished" and info.ended is not None
    assert info.task["logical_batch"] == 8 and info.task["recipe"] == "recipe.py"
    assert info.plan == done.plan.techniques
    assert info.versions["torch"] == torch.__version__
    assert info.host["cores"] >= 1 and "resident" in info.plan


def test_a_resumed_run_records_on_and_supersedes_what_is_taken_again(tmp_path: Path) -> None:
    hotlap.train(short(steps=10), run_dir=tmp_path / "whole")
    run_dir = tmp_path / "resumed"

    def fail(epoch: Any) -> None:
        raise KeyboardInterrupt

    hotlap.train(short(steps=4), run_dir=run_dir)
    with pytest.raises(KeyboardInterrupt):
        # It has taken 7 steps when it fails, and has saved none of them.
        hotlap.train(short(steps=10), run_dir=run_dir, resume="auto", progress=fail)
    failed = read_run(run_dir)
    assert failed.info is not None and failed.info.state == "failed"
    assert failed.info.error is not None and "KeyboardInterrupt" in failed.info.error
    assert failed.steps == 7
    hotlap.train(short(steps=10), run_dir=run_dir, resume="auto")
    whole, resumed = read_run(tmp_path / "whole"), read_run(run_dir)
    assert curve(resumed, "step/loss") == curve(whole, "step/loss")
    assert resumed.curves["step/loss"].steps == tuple(range(1, 11))
    assert resumed.info is not None and [row["step"] for row in resumed.info.resumed] == [4, 4]
    times = resumed.curves["step/loss"].times_s
    assert list(times) == sorted(times)


@pytest.mark.parametrize("make", [lambda: short(steps=10), device_task], ids=["cpu", "device"])
def test_what_was_recorded_is_written_before_the_checkpoint_that_is_resumed_from(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps before a checkpoint are not taken again: a kill right after it must lose no record."""
    if make is device_task:
        monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: FakeCuda())
    monkeypatch.setattr(writer, "_EVERY_S", 60.0)
    found: list[tuple[int, int]] = []
    commit = saving.commit

    def look(root: Path, step: int, *args: Any, **options: Any) -> None:
        commit(root, step, *args, **options)
        found.append((step, len(read_run(tmp_path).curves["step/loss"].steps)))

    monkeypatch.setattr(saving, "commit", look)
    hotlap.train(make(), run_dir=tmp_path, save_every="4steps")
    assert len(found) >= 3 and all(step == recorded for step, recorded in found)


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_has_the_record_of_one_that_was_not(
    tmp_path: Path, root: Path
) -> None:
    def command(run_dir: Path) -> list[str]:
        recipe = str(root / "tests/tiny_recipe.py")
        options = ["--epochs", "200", "--samples", "64", "--run-dir", str(run_dir)]
        resumes = ["--resume", "auto", "--save-every", "7steps"]
        return [sys.executable, "-m", "hotlap", "train", recipe, *options, *resumes]

    subprocess.run(command(tmp_path / "whole"), check=True, timeout=120)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    for _ in range(2):
        # What a process had written when it was killed does not count for the next one.
        lines = 60 + (metrics.read_bytes().count(b"\n") if metrics.exists() else 0)
        process = subprocess.Popen(command(tmp_path / "killed"))
        until = time.monotonic() + 60
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        info = read_run(tmp_path / "killed").info
        assert info is not None and info.state == "killed"
    subprocess.run(command(tmp_path / "killed"), check=True, timeout=120)
    whole, killed = read_run(tmp_path / "whole"), read_run(tmp_path / "killed")
    assert curve(killed, "step/loss") == curve(whole, "step/loss")
    assert len(killed.curves["step/loss"].steps) == 800 and killed.unreadable == 0
    assert killed.info is not None and len(killed.info.resumed) == 2


def test_the_run_of_a_script_is_not_mixed_with_a_training(tmp_path: Path) -> None:
    about = {"script": "/me/train.py", "arguments": ""}
    RunInfo(task=about, state=FINISHED).write(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    for resume in (None, "auto"):
        with pytest.raises(UsageError, match=r"holds a run of '/me/train\.py' by `hotlap run`"):
            hotlap.train(short(steps=4), run_dir=tmp_path, resume=resume)
    assert (tmp_path / "run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    # The negative control: what was measured of it is no run, and neither is its own one another's.
    RunInfo(task=about, state=MEASURED).write(tmp_path)
    hotlap.train(short(steps=4), run_dir=tmp_path, about=about)
    hotlap.train(short(steps=6), run_dir=tmp_path, about=about, resume="auto")
    assert read_run(tmp_path).steps == 6


def test_a_stopped_run_says_so(tmp_path: Path) -> None:
    seen: list[int] = []
    hotlap.train(short(steps=9), run_dir=tmp_path, stop=lambda: len(seen) > 2 or seen.append(1))  # type: ignore[func-returns-value]
    info = read_run(tmp_path).info
    assert info is not None and info.state == "stopped"


def test_without_a_folder_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hotlap.train(short(steps=2))
    assert not list(tmp_path.iterdir())


def test_losses_of_a_device_are_read_without_waiting_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeCuda()
    monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: device)
    read_at: list[int] = []
    give = DeferredLosses.flush

    def flush(self: DeferredLosses) -> None:
        read_at.append(device.calls.count("synchronize"))
        give(self)

    monkeypatch.setattr(DeferredLosses, "flush", flush)
    losses = [float(step.loss) for step in hotlap.steps(device_task())]
    before = device.calls.count("synchronize")
    done = hotlap.train(device_task(), run_dir=tmp_path)
    # The device is waited for at the end of each epoch, as without a record.
    assert device.calls.count("synchronize") - before == len(done.epochs)
    assert curve(read_run(tmp_path), "step/loss") == dict(enumerate(losses, 1))


def test_losses_arrive_before_the_epoch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    device, given = FakeCuda(), []
    deferred = DeferredLosses(device, lambda *row: given.append(row), lambda: 1.5)
    for step in range(1, 131):
        deferred.add(step, 1, torch.tensor(step / 2))
    assert [row[0] for row in given] == list(range(1, 129))
    assert given[-1] == (128, 1, 1.5, 64.0) and device.slow_copies == 0
    deferred.flush()
    assert [row[0] for row in given] == list(range(1, 131))


def test_what_needs_a_folder_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="tracker 'tensorboard' needs a folder to record the run in"
    ):
        hotlap.train(short(), track=("tensorboard",))
    with pytest.raises(UsageError, match=r"tracker 'tensorbord' is not known.*tensorboard"):
        hotlap.train(short(), track=("tensorbord",), run_dir=tmp_path / "run")
    with pytest.raises(
        UsageError, match=r"0\.1 s between two samples of system metrics is too short"
    ):
        hotlap.train(short(), system_every_s=0.1, run_dir=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_code_is_named_with_its_changes(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, timeout=30)

    assert code_in(tmp_path) == {}
    git("init", "-q")
    (tmp_path / "train.py").write_text("lr = 1")
    git("add", "train.py")
    git("commit", "-qm", "first")
    (tmp_path / "notes.txt").write_text("not tracked")
    clean = code_in(tmp_path)
    assert len(clean["commit"]) == 40 and clean["dirty"] is False
    (tmp_path / "train.py").write_text("lr = 2")
    assert code_in(tmp_path) == {**clean, "dirty": True}


def test_the_drivers_version_is_read_from_its_own_words(tmp_path: Path) -> None:
    words = tmp_path / "version"
    words.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    assert driver_version(words) == "550.54.15"
    assert driver_version(tmp_path / "absent") is None
