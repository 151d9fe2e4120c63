"""After a crash at any moment there is a whole step; each sync is needed for that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.checkpoint import files, litter, write, write_shards
from hotlap.checkpoint.layout import describe, layout_of
from hotlap.checkpoint.read import find_newest
from hotlap.checkpoint.shards import Piece
from hotlap.distributed.reduce import Reduce
from tests.checkpoint.rank_threads import on_ranks
from tests.checkpoint.recorded import Disk, Op, Recorder
from tests.checkpoint.whole import is_whole

Left = tuple[int, bool, str | None]
"""Newest step of a state, whether it is torn, and what the hint says."""
MOST = 8
SAVES = 2


def save(root: Path, step: int) -> None:
    tensors = {
        "model": {"weight": torch.full((2,), float(step))},
        "random": {"torch": torch.full((2,), step)},
    }
    write.commit(root, step, tensors, {"step": step}, is_whole=is_whole, keep=1)


def save_parts(root: Path, step: int) -> None:
    """Save the same from two ranks, of which each holds half of the weight."""

    def save(reduce: Reduce) -> Path:
        held = {"model": {"weight": Piece(torch.full((1,), float(step)), (2,), (reduce.rank,))}}
        layout = layout_of(reduce.gather(describe(held)))
        made = write_shards.Commit(root, step, layout)
        return write_shards.commit_shards(
            made, held, {"step": step}, reduce, is_whole=is_whole, keep=1
        )

    assert on_ranks(2, save) == [root / write.step_name(step)] * 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Op]]:
    return record(tmp_path_factory.mktemp("recorded"), save)


def record(folder: Path, save: Callable[[Path, int], None]) -> list[tuple[int, Op]]:
    """Return saves into a folder that is not there yet: (steps that were returned, what next)."""
    recorder = Recorder(folder)
    ops: list[tuple[int, Op]] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, litter, write, write_shards):
            patch.setattr(module, "os", recorder)
        patch.setattr(write, "delete", recorder.delete)
        for step in range(1, SAVES + 1):
            save(folder / "run" / "ckpt", step)
            ops += [(step - 1, op) for op in recorder.ops[len(ops) :]]
    return ops


def violations(ops: list[tuple[int, Op]], folder: Path, known: dict[Any, Left]) -> list[str]:
    """Return what goes wrong in any state that a crash may leave.

    Args:
        ops: what was done, each with the steps that were returned before.
        folder: where a state is looked at.
        known: what was found in states before.
    """
    disk, found, seen = Disk(), [], set()
    done = [returned for returned, _ in ops[1:]] + [SAVES]
    for (_, op), returned in zip(ops, done, strict=True):
        disk.do(op)
        for left in disk.crashes(MOST):
            key = left.key()
            if (returned, key) in seen:
                continue
            seen.add((returned, key))
            if key not in known:
                left.put(folder)
                known[key] = look(folder / "run" / "ckpt")
            found += [f"after {op[:2]}: {what}" for what in wrong(known[key], returned)]
    return found


def look(root: Path) -> Left:
    step, _ = find_newest(root)
    hint = root / write.LATEST
    text = hint.read_text() if hint.exists() else None
    if text is not None and not (root / text).is_dir():
        text = "what is not there"
    if step is None:
        return 0, False, text
    return step.step, step.tensors["model"]["weight"].tolist() != [float(step.step)] * 2, text


def wrong(left: Left, returned: int) -> list[str]:
    step, is_torn, hint = left
    found = []
    if step < returned:
        found.append(f"step {returned} was saved, {step} is left")
    if is_torn:
        found.append(f"step {step} is torn")
    due = (write.step_name(returned), write.step_name(returned + 1))
    if hint == "what is not there" or (returned and hint not in due):
        found.append("the hint is torn, or older than what was saved")
    return found


def test_no_crash_loses_or_tears_a_step_and_each_sync_is_needed(
    recorded: list[tuple[int, Op]], tmp_path: Path
) -> None:
    known: dict[Any, Left] = {}
    assert violations(recorded, tmp_path / "disk", known) == []
    # Of the last save, and the folders that the first one makes; the same lines do the rest.
    last = [n for n, (done, _) in enumerate(recorded) if done == SAVES - 1]
    places = [n for n, (_, op) in enumerate(recorded) if op[0] == "fsync"]
    places = [n for n in places if n in last or recorded[n][1][1] in (".", "run")]
    assert len(places) == 10
    needless = [
        recorded[place][1]
        for place in places
        if not violations(recorded[:place] + recorded[place + 1 :], tmp_path / "disk", known)
    ]
    assert needless == []


def test_the_old_step_goes_after_the_new_one_is_there(
    recorded: list[tuple[int, Op]], tmp_path: Path
) -> None:
    retired = [each for each in recorded if "trash" in " ".join(map(str, each[1][1:3]))]
    rest = [each for each in recorded if each not in retired]
    place = next(n for n, (done, _) in enumerate(rest) if done == SAVES - 1)
    assert retired
    assert violations(rest[:place] + retired + rest[place:], tmp_path / "disk", {})


def test_a_step_has_its_name_once_it_is_whole(recorded: list[tuple[int, Op]]) -> None:
    seen: set[str] = set()
    for _, op in recorded:
        if op[0] == "rename" and "step" in op[2] and "trash" not in op[2]:
            inside = {path for path in seen if path.startswith(f"{op[1]}/")}
            # Four files and their folder.
            assert len(inside) == 4 and op[1] in seen, (op, seen)
        if op[0] == "fsync":
            seen.add(op[1])


@pytest.mark.slow
def test_no_crash_loses_or_tears_a_step_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    ops = record(tmp_path / "recorded", save_parts)
    known: dict[Any, Left] = {}
    assert violations(ops, tmp_path / "disk", known) == []
    for what in ("-of-", "MANIFEST", "state.json"):
        rest = [each for each in ops if each[1][0] != "fsync" or what not in each[1][1]]
        assert len(rest) < len(ops)
        assert violations(rest, tmp_path / "disk", known), what
