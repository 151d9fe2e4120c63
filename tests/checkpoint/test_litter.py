"""What failed saves and dead runs leave is deleted; what others are writing stays."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.checkpoint import files, write
from hotlap.checkpoint.litter import clear_away, temporary_name
from hotlap.checkpoint.owner import place, start_time_of
from hotlap.checkpoint.read import find_newest
from hotlap.errors import StorageError, UsageError
from tests.engine.test_saving import numbers, short
from tests.engine.test_saving import write as save

HUGE = ".tmp-8-99999999999999999999-x"


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_litter_goes_before_a_save_and_links_are_not_followed(tmp_path: Path) -> None:
    root, mine = tmp_path / "ckpt", tmp_path / "mine"
    (root / f".tmp-3-{2**30}-1-x").mkdir(parents=True)
    (root / f".tmp-3-{2**30}-1-x" / "model.safetensors").write_bytes(b"0" * 100)
    mine.mkdir()
    (mine / "file").write_text("mine")
    for name in (".tmp-x", ".trash-x"):
        (root / name).symlink_to(mine, target_is_directory=True)
    (root / ".tmp-dangling").symlink_to(tmp_path / "nowhere")
    for name in (HUGE, f".tmp-latest-{2**30}", f".tmp-5-{os.getppid()}-1-reused"):
        (root / name).write_text("")
    alive = f".tmp-4-{os.getppid()}-{start_time_of(os.getppid())}-x"
    (root / alive).mkdir()
    path = save(root, 1)
    assert names(root) == {path.name, "LATEST", alive}
    assert (mine / "file").read_text() == "mine"


def test_what_another_container_is_writing_stays_until_it_has_been_silent(tmp_path: Path) -> None:
    assert f"-{place()}-" in temporary_name("4")
    elsewhere, here = (tmp_path / f".tmp-4-{2**30}-1-{name}-x" for name in ("0" * 8, place()))
    for folder in (elsewhere, here):
        folder.mkdir()
        (folder / "model.safetensors").write_text("")
    said: list[str] = []
    clear_away(tmp_path, said.append)
    assert names(tmp_path) == {elsewhere.name}
    os.utime(elsewhere, (0, 0))
    clear_away(tmp_path, said.append)
    assert names(tmp_path) == {elsewhere.name}
    os.utime(elsewhere / "model.safetensors", (0, 0))
    clear_away(tmp_path, said.append)
    assert names(tmp_path) == set() and not said


@pytest.mark.parametrize("fails", ["write", "fsync", "rename", "mkdir"])
def test_a_save_that_fails_takes_no_space_and_the_next_one_succeeds(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ckpt"
    first = save(root, 1)
    before = {each: each.stat() for each in first.iterdir()}

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, full)
        with pytest.raises(StorageError, match=r"step 2 could not be written.*No space left"):
            save(root, 2)
    assert names(root) == {first.name, "LATEST"}
    assert {each: each.stat() for each in first.iterdir()} == before
    save(root, 2)
    found, _ = find_newest(root)
    assert found is not None and found.step == 2


def test_one_failed_save_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, said = files.write_new, []

    def sometimes(path: Path, content: bytes) -> None:
        if path.parent.name.startswith(".tmp-2-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content)

    monkeypatch.setattr(write, "write_new", sometimes)
    options: dict[str, Any] = {"run_dir": tmp_path, "notice": said.append, "save_every": "1steps"}
    hotlap.train(short(steps=4), keep=9, **options)
    assert numbers(tmp_path) == [1, 3, 4]
    assert [line for line in said if "step 2 could not be written" in line and "continues" in line]


def test_a_last_save_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.write_new

    def full_at_the_end(path: Path, content: bytes) -> None:
        if path.parent.name.startswith(".tmp-3-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content)

    monkeypatch.setattr(write, "write_new", full_at_the_end)
    with pytest.raises(StorageError, match="step 3"):
        hotlap.train(short(steps=3), run_dir=tmp_path, save_every="1steps")
    assert numbers(tmp_path) == [1, 2]


def test_a_hint_that_cannot_be_written_is_told_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / "LATEST").mkdir(parents=True)
    said: list[str] = []
    hotlap.train(short(steps=2), run_dir=tmp_path, notice=said.append)
    assert numbers(tmp_path) == [2]
    assert any("was saved, but the hint" in line for line in said)
    assert names(tmp_path / "ckpt") == {"LATEST", "step-000000000002"}


@pytest.mark.parametrize("kind", ["file", "dangling"])
def test_what_has_a_steps_name_and_is_none_is_found_before_the_first_step(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "ckpt" / "step-000000000009"
    path.parent.mkdir()
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to("nowhere")
    seen: list[Any] = []
    with pytest.raises(UsageError, match=r"step-000000000009' .* is not a folder"):
        hotlap.train(short(steps=9), run_dir=tmp_path, progress=seen.append)
    assert not seen
    with pytest.raises(StorageError, match=r"step-000000000009' .* is not a folder"):
        save(tmp_path / "ckpt", 9)


def test_a_folder_behind_a_dangling_link_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"a symlink to '.*nowhere', which does not exist"):
        hotlap.train(short(steps=1), run_dir=tmp_path / "run")


def test_a_path_of_5000_letters_is_refused(tmp_path: Path) -> None:
    for given in ({"run_dir": "x" * 5000}, {"resume": "x" * 5000}, {"weights": "x" * 5000}):
        with pytest.raises(UsageError, match="has 5000 characters, too many"):
            hotlap.train(short(steps=1), **given)


READS = """
import sys
from pathlib import Path
from hotlap.checkpoint.read import read
for path in sys.argv[1:]:
    try:
        read(Path(path))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    given = []
    for name in ("MANIFEST.json", "model.safetensors", "state.json"):
        path = save(tmp_path / name, 1)
        (path / name).unlink()
        os.mkfifo(path / name)
        given.append(str(path))
    # In a process of its own: one that waits can be ended.
    done = subprocess.run(
        [sys.executable, "-c", READS, *given], capture_output=True, text=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done
    assert all(line.startswith("CheckpointCorrupt") and "a FIFO" in line for line in lines)
    path = Path(given[0])
    (path / "MANIFEST.json").unlink()
    (path / "MANIFEST.json").symlink_to("/dev/zero")
    _, passed = find_newest(path.parent)
    assert "is a symlink, not a regular file" in passed[0]
