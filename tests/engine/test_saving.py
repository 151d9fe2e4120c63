"""Nothing that was trained is thrown away unsaid: where a run is saved, and what is retired."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import hotlap
from hotlap.checkpoint.read import find_newest, read
from hotlap.checkpoint.write import commit, committed_steps, set_aside
from hotlap.engine.export.stored_weights import weights_of
from hotlap.errors import StorageError, UsageError
from tests.checkpoint.whole import is_whole
from tests.engine.test_resume import network, state, task


def write(root: Path, step: int, *, keep: int = 2, value: float = 0.0) -> Path:
    tensors = {"model": {"weight": torch.full((3,), value)}}
    return commit(root, step, tensors, {}, is_whole=is_whole, keep=keep)


def numbers(run_dir: Path) -> list[int]:
    return [int(path.name[5:]) for path in committed_steps(run_dir / "ckpt")]


def short(**options: Any) -> hotlap.Task:
    return task(**{"schedule": None, **options})


def step_of(run_dir: Path, number: int) -> Path:
    return run_dir / "ckpt" / f"step-{number:012d}"


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (2, [4, 5]), (3, [3, 4, 5])])
def test_the_newest_steps_are_kept(keep: int, kept: list[int], tmp_path: Path) -> None:
    for step in range(1, 6):
        write(tmp_path / "ckpt", step, keep=keep)
    assert numbers(tmp_path) == kept


def test_a_step_whose_rate_is_not_finite_does_not_replace_the_last_usable_one(
    tmp_path: Path,
) -> None:
    """After the third step the rate is infinite, and the weights are still finite."""
    said: list[str] = []

    def schedule(optimizer: Any) -> Any:
        rates = [1.0, 1.0, 1.0, float("inf")]
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])

    run = short(schedule=schedule, steps=3)
    options: dict[str, Any] = {"keep": 1, "save_every": "1steps", "notice": said.append}
    hotlap.train(run, run_dir=tmp_path, **options)
    assert numbers(tmp_path) == [2, 3]
    assert any("'lr of group 0' is not finite after step 3" in line for line in said)
    hotlap.train(run, resume=str(tmp_path), **options)
    assert any("resuming from" in line and "step 2" in line for line in said)


def test_what_is_no_step_of_the_runs_own_is_never_retired(tmp_path: Path) -> None:
    first = write(tmp_path / "ckpt", 1)
    best = first.with_name(f"{first.name}-best")
    shutil.copytree(first, best)
    notes = first.with_name("step-notes.txt")
    notes.write_text("mine")
    moved = first.rename(tmp_path / "elsewhere")
    first.symlink_to(moved, target_is_directory=True)
    for step in range(2, 6):
        write(tmp_path / "ckpt", step)
    assert is_whole(best) and notes.exists() and is_whole(first)
    assert numbers(tmp_path) == [1, 4, 5]


def test_a_damaged_step_that_was_passed_over_takes_no_place_of_a_whole_one(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 1)
    (write(tmp_path / "ckpt", 9) / "model.safetensors").write_bytes(b"")
    write(tmp_path / "ckpt", 2, keep=1)
    found, _ = find_newest(tmp_path / "ckpt")
    assert found is not None and found.step == 2


def test_a_step_that_a_resumed_run_passed_over_is_renamed_and_not_counted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_every": "1steps", "keep": 3}
    hotlap.train(short(steps=4), run_dir=tmp_path, **options)
    assert numbers(tmp_path) == [2, 3, 4]
    damaged = step_of(tmp_path, 4)
    (damaged / "model.safetensors").write_bytes(b"")
    said: list[str] = []
    # The next save is after step 6, where nothing shows that step 4 was passed over.
    again: dict[str, Any] = {"save_every": "3steps", "keep": 2, "notice": said.append}
    hotlap.train(short(steps=6), resume=str(tmp_path), **again)
    assert numbers(tmp_path) == [3, 6]
    aside = damaged.with_name(f"unusable-{damaged.name}")
    assert (aside / "model.safetensors").read_bytes() == b""
    assert any(f"was renamed to '{aside.name}'" in line for line in said)


def test_a_step_is_set_aside_beside_an_earlier_one(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        path = write(tmp_path, 1)
        (path / "MANIFEST.json").unlink()
        set_aside(path, said.append)
    names = ["unusable-step-000000000001", "unusable-step-000000000001-2"]
    assert sorted(path.name for path in tmp_path.glob("unusable-*")) == names
    assert len(said) == 2 and not committed_steps(tmp_path)


def test_a_step_that_is_there_is_ours_only_with_the_same_content(tmp_path: Path) -> None:
    path = write(tmp_path / "ckpt", 1)
    before = (path / "MANIFEST.json").stat()
    assert write(tmp_path / "ckpt", 1) == path
    with pytest.raises(StorageError, match="with other contents"):
        write(tmp_path / "ckpt", 1, value=1.0)
    assert (path / "MANIFEST.json").stat() == before
    assert read(path).tensors["model"]["weight"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("named", [True, False])
def test_going_on_before_newer_steps_is_refused(named: bool, tmp_path: Path) -> None:
    run, seen = tmp_path / "run", []
    hotlap.train(short(steps=4), run_dir=run, save_every="2steps")
    given: dict[str, Any] = {"run_dir": run} if named else {}
    with pytest.raises(UsageError, match="newer than step-000000000002"):
        hotlap.train(short(steps=6), resume=str(step_of(run, 2)), progress=seen.append, **given)
    assert not seen
    assert numbers(run) == [2, 4]
    hotlap.train(short(steps=6), run_dir=tmp_path / "other", resume=str(step_of(run, 2)))
    assert numbers(tmp_path / "other") == [6]
    # The newest is gone on from by its name too.
    hotlap.train(short(steps=6), resume=str(step_of(run, 4)), **given)
    assert state(run) == state(tmp_path / "other")


def test_going_on_in_a_folder_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        hotlap.train(short(steps=4), run_dir=tmp_path / name)
    with pytest.raises(UsageError, match="already holds a run"):
        hotlap.train(short(steps=9), run_dir=tmp_path / "b", resume=str(tmp_path / "a"))
    assert numbers(tmp_path / "b") == [4]


def test_a_resumed_run_is_saved_where_it_lies_if_no_folder_is_named(tmp_path: Path) -> None:
    hotlap.train(short(steps=2), run_dir=tmp_path)
    done = hotlap.train(short(steps=4), resume=str(tmp_path))
    assert done.run_dir == str(tmp_path)
    hotlap.train(short(steps=6), resume=str(step_of(tmp_path, 4)), save_every="1steps", keep=3)
    assert numbers(tmp_path) == [4, 5, 6]


def test_a_copy_of_a_step_is_gone_on_from_where_a_folder_is_named(tmp_path: Path) -> None:
    hotlap.train(short(steps=2), run_dir=tmp_path / "run")
    copy = shutil.copytree(step_of(tmp_path / "run", 2), tmp_path / "best")
    with pytest.raises(UsageError, match="is not in a run's folder"):
        hotlap.train(short(steps=4), resume=str(copy))
    hotlap.train(short(steps=4), resume=str(copy), run_dir=tmp_path / "more")
    assert numbers(tmp_path / "more") == [4]


def test_a_run_may_be_called_like_a_step(tmp_path: Path) -> None:
    run = tmp_path / "step-lr"
    hotlap.train(short(steps=2), run_dir=run)
    hotlap.train(short(steps=4), resume=str(run))
    assert numbers(run) == [2, 4]
    assert weights_of(run, network().state_dict())


def test_a_finished_run_is_not_saved_again_under_another_plan(tmp_path: Path) -> None:
    fp16 = hotlap.Plan({"autocast": {"dtype": "fp16"}})
    hotlap.train(short(steps=2), run_dir=tmp_path)
    assert hotlap.train(short(steps=2), fp16, resume=str(tmp_path)).epochs == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"save_every": "1steps"}, "save_every='1steps' needs a folder for checkpoints"),
        ({"run_dir": "run", "keep": 0}, "keep=0 is not valid"),
        ({"run_dir": "run", "keep": True}, "keep=True is not valid"),
        ({"resume": "run", "weights": "old.pt"}, "Pass only one of them, or set resume='auto'"),
    ],
)
def test_what_cannot_be_saved_so_is_refused(
    given: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        hotlap.train(short(), **given)
    assert not list(tmp_path.iterdir())


def test_one_call_begins_with_weights_and_goes_on_without_them(tmp_path: Path) -> None:
    hotlap.train(short(steps=3, seed=1), run_dir=tmp_path / "first")
    weights = {"weights": step_of(tmp_path / "first", 3)}
    hotlap.train(short(steps=9), run_dir=tmp_path / "whole", **weights)
    for steps in (4, 9):
        hotlap.train(short(steps=steps), run_dir=tmp_path / "run", resume="auto", **weights)
    assert state(tmp_path / "run") == state(tmp_path / "whole")
    hotlap.train(short(steps=9), run_dir=tmp_path / "without")
    assert state(tmp_path / "run") != state(tmp_path / "without")


def test_an_epochs_checkpoint_is_on_disk_when_saved_is_called(tmp_path: Path) -> None:
    calls: list[Any] = []

    hotlap.train(
        short(steps=17),
        run_dir=tmp_path,
        save_every="2epochs",
        progress=lambda epoch: calls.append(("done", epoch.epoch, numbers(tmp_path))),
        saved=lambda epoch, folder: calls.append(("saved", epoch.epoch, read(folder).step)),
    )
    assert calls == [
        ("done", 1, []),
        ("done", 2, []),
        ("saved", 2, 14),
        ("done", 3, [14]),
        ("saved", 3, 17),
    ]


def test_an_epoch_that_could_not_be_saved_is_not_reported_as_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once(root: Path, step: int, *args: Any, **options: Any) -> Path:
        if step == 7:
            raise StorageError("the disk is full.")
        return commit(root, step, *args, **options)

    monkeypatch.setattr("hotlap.engine.state.saving.commit", fail_once)
    epochs: list[int] = []
    hotlap.train(
        short(steps=14), run_dir=tmp_path, saved=lambda epoch, _: epochs.append(epoch.epoch)
    )
    assert epochs == [2]
