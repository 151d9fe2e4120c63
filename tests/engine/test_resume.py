"""A run that was stopped and resumed is the run that was never stopped, to the bit."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap.checkpoint.read import find_newest, read
from hotlap.errors import CheckpointCorrupt, MissingFile
from hotlap.plan import Plan

STEPS = 40
FAST = (1, 4, 5, 6, 7, 13, 19, 20, 39)
"""Around what the schedule does, around the ends of epochs, and both ends; `make test-all` has
every step."""


class Noisy(Dataset):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + np.random.random() + torch.rand(3)
        return torch.full((3,), index / 50) + noise, index % 2


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def schedule(optimizer: Any) -> Any:
    kinds = torch.optim.lr_scheduler
    warm = kinds.LinearLR(optimizer, 0.1, total_iters=4)
    return kinds.SequentialLR(
        optimizer, [warm, kinds.MultiStepLR(optimizer, [6, 20])], milestones=[5]
    )


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": network,
        "loss": loss,
        "data": Noisy(),
        "optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
        "batch_size": 4,
        "accumulate": 2,
        "splits_statistics": True,
        "steps": STEPS,
        "schedule": schedule,
        "clip_norm": 1.0,
    }
    return hotlap.Task(**{**given, **options})


def state(run_dir: Path) -> tuple[str, str]:
    """Return everything that a checkpoint says of a finished run, to the bit."""
    found, passed = find_newest(run_dir / "ckpt")
    assert found is not None and not passed
    tensors = {
        f"{file}/{name}": tensor.numpy().tobytes().hex()
        for file, group in found.tensors.items()
        for name, tensor in group.items()
    }
    return json.dumps(tensors, sort_keys=True), json.dumps(found.state, sort_keys=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, str]]:
    """A run that kept the checkpoint of every step."""
    run_dir = tmp_path_factory.mktemp("stopped")
    hotlap.train(task(), run_dir=run_dir, save_every="1steps", keep=STEPS)
    return run_dir, state(run_dir)


@pytest.mark.parametrize(
    "done",
    [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in range(1, STEPS)],
)
def test_resumed_after_any_step_it_ends_with_the_same_bits(
    done: int, stopped: tuple[Path, tuple[str, str]], tmp_path: Path
) -> None:
    run_dir, expected = stopped
    hotlap.train(task(), run_dir=tmp_path, resume=str(run_dir / "ckpt" / f"step-{done:012d}"))
    assert state(tmp_path) == expected


@pytest.mark.parametrize("lost", ["torch", "numpy", "optimizer"])
def test_the_comparison_sees_what_is_not_restored(
    lost: str, stopped: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lost == "optimizer":
        monkeypatch.setattr("hotlap.engine.state.content.load_optimizer", lambda *_: None)
    else:
        monkeypatch.setattr("hotlap.engine.state.content.load_random_states", lambda *_: None)
    run_dir, expected = stopped
    hotlap.train(task(), run_dir=tmp_path, resume=str(run_dir / "ckpt" / f"step-{17:012d}"))
    assert state(tmp_path) != expected


@pytest.mark.parametrize(
    "plan", [Plan(), Plan({"master_weights": {}}), Plan({"optimizer": {"implementation": "fused"}})]
)
def test_under_other_plans_too(plan: Plan, tmp_path: Path) -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2))

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    hotlap.train(task(model=plain), plan, run_dir=whole)
    hotlap.train(task(model=plain, steps=13), plan, run_dir=parts)
    hotlap.train(task(model=plain), plan, run_dir=parts, resume="auto")
    assert state(whole) == state(parts)


def test_a_plan_may_change_in_between(tmp_path: Path) -> None:
    hotlap.train(task(steps=13), Plan(), run_dir=tmp_path)
    hotlap.train(task(), Plan({"workers": {"count": 1}}), run_dir=tmp_path, resume="auto")
    hotlap.train(task(), Plan(), run_dir=tmp_path / "whole")
    assert state(tmp_path) == state(tmp_path / "whole")


def test_the_weights_load_into_the_plain_module(tmp_path: Path) -> None:
    done = hotlap.train(task(), run_dir=tmp_path)
    found, _ = find_newest(tmp_path / "ckpt")
    assert found is not None
    fresh = network()
    fresh.load_state_dict(found.tensors["model"])
    for name, value in done.model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 8}, "logical_batch was 8, now it is 16"),
        ({"seed": 1}, "seed was 0, now it is 1"),
        ({"optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=0.02)}, "lr"),
        ({"model": lambda: nn.Sequential(nn.Linear(3, 2))}, "weights"),
        ({"schedule": None}, "schedule was SequentialLR, now it is None"),
        ({"steps": 10}, "after 13 steps, but the task has only 10"),
    ],
)
def test_a_checkpoint_of_another_task_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    hotlap.train(task(steps=13), run_dir=tmp_path)
    with pytest.raises(hotlap.UsageError, match=words):
        hotlap.train(task(**options), run_dir=tmp_path, resume="auto")


def damage(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for at in {0, 8, len(content) // 2, len(content) - 1}:
            changed = bytes([content[at] ^ 1])
            path.write_bytes(content[:at] + changed + content[at + 1 :])
            yield f"bit {at}", path
            path.write_bytes(content[:at])
            yield f"cut at {at}", path
        path.unlink()
        yield "gone", path
        path.write_bytes(content)


def test_every_damage_is_seen_and_the_step_before_is_taken(tmp_path: Path) -> None:
    hotlap.train(task(steps=4), run_dir=tmp_path, save_every="2steps")
    older, newer = sorted((tmp_path / "ckpt").glob("step-*"))
    seen = 0
    for what, path in damage(newer):
        with pytest.raises(CheckpointCorrupt, match=path.name):
            read(newer)
        found, passed = find_newest(tmp_path / "ckpt")
        assert found is not None and found.path == older, what
        assert len(passed) == 1
        seen += 1
    assert seen > 20
    assert read(newer).step == 4
    os.rename(older, newer.with_name("step-000000000009"))
    with pytest.raises(CheckpointCorrupt, match="manifest of step 2"):
        read(newer.with_name("step-000000000009"))


def test_nothing_to_resume_from_is_an_error_where_a_folder_was_named(tmp_path: Path) -> None:
    for resume in (str(tmp_path), str(tmp_path / "step-000000000001")):
        with pytest.raises(MissingFile):
            hotlap.train(task(), run_dir=tmp_path, resume=resume)
    with pytest.raises(hotlap.UsageError, match="--run-dir"):
        hotlap.train(task(), resume="auto")
    with pytest.raises(hotlap.UsageError, match="save_every='soon' is not an interval"):
        hotlap.train(task(), run_dir=tmp_path, save_every="soon")


def test_one_call_begins_a_run_goes_on_with_it_and_ends_when_it_is_done(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", []

    def start(steps: int) -> Any:
        said.clear()
        return hotlap.train(task(steps=steps), run_dir=folder, resume="auto", notice=said.append)

    start(5)
    assert said == [f"no checkpoint in '{folder}' yet: starting a new run"]
    done = start(13)
    assert len(said) == 1
    assert "resuming from" in said[0]
    assert "step 5" in said[0]
    again = start(13)
    assert "step 13, the end of the run" in said[0]
    assert (again.steps, again.epochs) == (13, ())
    assert again.to_json()["final"] == {"loss": None, "metrics": dict(done.held_out)}
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, done.model.state_dict()[name])


def test_a_run_whose_every_step_is_damaged_does_not_begin_anew(tmp_path: Path) -> None:
    hotlap.train(task(steps=4), run_dir=tmp_path)
    for path in (tmp_path / "ckpt").glob("step-*/*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(MissingFile, match="no usable checkpoint"):
        hotlap.train(task(), run_dir=tmp_path, resume="auto")


def test_what_is_passed_over_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    hotlap.train(task(steps=4), run_dir=tmp_path, save_every="2steps")
    newer = sorted((tmp_path / "ckpt").glob("step-*"))[-1]
    next(newer.glob("*.safetensors")).write_bytes(b"")
    hotlap.train(task(steps=4), run_dir=tmp_path, resume="auto", notice=said.append)
    assert "skipped" in said[0]
    assert newer.name in said[0]
    assert "step 2" in said[1]


def test_a_damaged_last_step_is_written_again(tmp_path: Path) -> None:
    hotlap.train(task(steps=4), run_dir=tmp_path, save_every="2steps")
    newer = sorted((tmp_path / "ckpt").glob("step-*"))[-1]
    expected = read(newer).state
    next(newer.glob("*.safetensors")).write_bytes(b"")
    hotlap.train(task(steps=4), run_dir=tmp_path, resume="auto")
    assert read(newer).state == expected


def test_a_finished_run_is_also_saved_where_it_goes_on(tmp_path: Path) -> None:
    hotlap.train(task(steps=4), run_dir=tmp_path / "a")
    hotlap.train(task(steps=4), run_dir=tmp_path / "b", resume=str(tmp_path / "a"))
    (saved,) = (tmp_path / "b" / "ckpt").glob("step-*")
    assert read(saved).step == 4


def test_a_run_that_ended_inside_an_epoch_goes_on_with_the_loss_of_all_of_it(
    tmp_path: Path,
) -> None:
    def plateau(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    given = {"schedule": plateau, "schedule_per": "epoch"}
    whole = hotlap.train(task(steps=24, **given), run_dir=tmp_path / "whole")
    hotlap.train(task(steps=10, **given), run_dir=tmp_path / "parts")
    parts = hotlap.train(task(steps=24, **given), run_dir=tmp_path / "parts", resume="auto")
    assert [e.loss for e in parts.epochs] == [e.loss for e in whole.epochs[1:]]
    assert [e.steps for e in parts.epochs] == [e.steps for e in whole.epochs[1:]]
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
