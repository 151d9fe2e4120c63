"""Only regular files are read, nothing is written over, and what stands in the way is named."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotlap.checkpoint import files
from hotlap.checkpoint.files import (
    check_path,
    make_folder,
    read_regular,
    why_unwritable,
    write_new,
)
from hotlap.errors import UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in: the name of a socket must be short."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_what_was_written_is_read_back(size: int, tmp_path: Path) -> None:
    content = bytes(range(size))
    write_new(tmp_path / "file", content)
    assert read_regular(tmp_path / "file", 10) == content


def test_of_a_file_that_grew_one_byte_more_than_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 4) == b"01234"
    assert read_regular(tmp_path / "file", 0) == b"0"


def test_a_file_larger_than_one_read_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHUNK", 3)
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 100) == b"0123456789"


@pytest.mark.parametrize("kind", ["a symlink", "a FIFO", "a folder", "a socket", "a device"])
def test_whatever_is_no_regular_file_is_refused_and_never_opened(
    kind: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("odd")
    if kind == "a symlink":
        (here / "target").write_bytes(b"secret")
        path.symlink_to("target")
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("odd")
    else:
        path = Path("/dev/null")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(OSError, match=f"'{path.name}' is {kind}, not a regular file$"):
        read_regular(path, 10)


def test_a_link_that_takes_a_files_place_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "file").symlink_to("secret")
    # As if it had been looked at before.
    monkeypatch.setattr(os, "lstat", os.stat)
    with pytest.raises(OSError) as refused:
        read_regular(tmp_path / "file", 10)
    assert refused.value.errno == errno.ELOOP


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_a_file_that_is_there_is_not_written_over(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    path = tmp_path / ("mine" if kind == "file" else "link")
    if kind != "file":
        path.symlink_to("mine" if kind == "link" else "nowhere")
    with pytest.raises(FileExistsError):
        write_new(path, b"other")
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


def test_folders_above_are_made_too(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(OSError):
        make_folder(tmp_path / "file" / "inside")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_is_told_with_what_stands_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    error = OSError(errno.EACCES, "Permission denied")
    inside = Path("a", "b")
    told = why_unwritable(error, tmp_path / "file" / inside)
    assert told == f"'{tmp_path / 'file'}' is not a folder"
    words = f"'{tmp_path / 'link'}' is a symlink to 'nowhere', which does not exist"
    assert why_unwritable(error, tmp_path / "link" / inside) == words
    assert why_unwritable(error, tmp_path / inside) == "Permission denied"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 5000, "has 5000 characters, too many for this file system. Use a shorter path"),
        ("a\0b", "null"),
    ],
)
def test_a_path_that_no_file_can_have_is_the_users_mistake(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        check_path(Path(name))
    assert len(str(refused.value)) < 200 and "\0" not in str(refused.value)


def test_a_path_that_a_file_could_have_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file" / "inside"):
        check_path(path)
