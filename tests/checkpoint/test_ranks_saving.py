"""Real ranks that fail or are killed while they save: one step is there, and readable by anyone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hotlap
from hotlap.checkpoint.read import find_newest, read
from hotlap.checkpoint.write import MANIFEST, commit
from hotlap.engine.export.exporting import export
from tests.checkpoint.forked_ranks import CASES, task
from tests.checkpoint.sharded import STATE, holds, state_of
from tests.checkpoint.whole import is_whole

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(kind: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.forked_ranks", str(folder), kind],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: {**case, "folder": folder / case["folder"]} for name, case in found.items()}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("faults", tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("kills", tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("name", CASES["faults"]())
def test_ranks_of_which_some_fail_all_say_so(name: str, faults: dict[str, Any]) -> None:
    case = faults[name]
    assert [each["code"] for each in case["ranks"]] == [0, 0]
    assert [each["kind"] for each in case["ranks"]] == ["StorageError"] * 2, case
    said = {each["said"] for each in case["ranks"]}
    assert len(said) == 1
    told = [rank for rank in (0, 1) if f"rank {rank}: " in str(said)]
    assert told == ([1] if name == "no room" else [r for r in (0, 1) if str(r) in name])
    assert ("File too large" if name == "no room" else "No space left") in str(said)
    root = case["folder"] / "ckpt"
    assert {each.name for each in root.iterdir()} == {"step-000000000001", "LATEST"}
    assert holds(root / "step-000000000001", 1)


LATE = ("after rename", "before LATEST", "before retiring", "within retiring", "after retiring")


@pytest.mark.parametrize("name", CASES["kills"]())
def test_whenever_a_rank_is_killed_a_whole_step_is_left(name: str, kills: dict[str, Any]) -> None:
    case = kills[name]
    codes = [each["code"] for each in case["ranks"]]
    killed = [rank for rank, code in enumerate(codes) if code == -9]
    named = [rank for rank in (0, 1) if f" {rank}" in name or f"{rank}," in name] or [0]
    # Of two, one may be told of the other's death before its own.
    assert killed and set(killed) <= set(named) and (len(named) > 1 or killed == named), case
    for each in case["ranks"]:
        # Who survives the others says that they are gone, and soon; or had all it needed.
        assert each["code"] == -9 or each.get("kind") == "RunError" or name in LATE, case
    root = case["folder"] / "ckpt"
    found, passed = find_newest(root)
    assert found is not None and not passed
    # All files of the step are there before the first rank commits it.
    assert found.step == (2 if name in LATE or name == "before commit of 1" else 1)
    assert holds(found.path, found.step)
    if killed == [1]:
        # The first rank lives, and takes back what it had made.
        assert not [each for each in root.iterdir() if each.name.startswith(".")]
    commit(root, 3, state_of(3), STATE, is_whole=is_whole, keep=1)
    assert {each.name for each in root.iterdir()} == {"step-000000000003", "LATEST"}


def test_a_run_that_ranks_saved_in_parts_is_resumed_by_any_number_of_ranks(tmp_path: Path) -> None:
    found = run("training", tmp_path)
    for case in found.values():
        assert [each["code"] for each in case["ranks"]] == [0, 0], found
        assert all("done" in each for each in case["ranks"]), found
    steps = sorted((tmp_path / "run" / "ckpt").glob("step-*"))
    assert len(steps) == 3
    for path in steps:
        assert json.loads((path / MANIFEST).read_text())["schema"] == 2
        names = {each.name for each in path.iterdir()}
        assert {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} < names
    # The run that one process makes.
    options: dict[str, Any] = {"device": "cpu", "save_every": "1epoch", "keep": 9}
    hotlap.train(task(3), run_dir=tmp_path / "alone", **options)
    for path in steps:
        check_alike(path, tmp_path / "alone" / "ckpt" / path.name)
    # And one process resumes what two have saved in parts.
    copy = tmp_path / "copy" / "ckpt"
    copy.mkdir(parents=True)
    steps[0].rename(copy / steps[0].name)
    hotlap.train(task(3), run_dir=tmp_path / "copy", resume="auto", **options)
    newest = steps[-1].name
    check_alike(copy / newest, tmp_path / "alone" / "ckpt" / newest)
    # Saved when the first rank's clock said so, and at the end.
    check_alike(tmp_path / "timed" / "ckpt" / newest, tmp_path / "alone" / "ckpt" / newest)
    out = tmp_path / "weights.safetensors"
    export(task(3), tmp_path / "run", out)
    assert out.stat().st_size > 0


def check_alike(path: Path, other: Path) -> None:
    one, two = read(path), read(other)
    for group in ("model", "optimizer"):
        assert one.tensors[group] and one.tensors[group].keys() == two.tensors[group].keys()
        for name, tensor in one.tensors[group].items():
            assert torch.equal(tensor, two.tensors[group][name]), name
    assert one.state["tensors"]["model"] == two.state["tensors"]["model"]
    assert one.state["position"] == two.state["position"]
