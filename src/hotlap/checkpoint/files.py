"""Checks paths, reads regular files only, and makes files and folders, flushed to the disk."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hotlap.errors import UsageError

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 24
_SHOWN = 60


def check_path(path: Path) -> None:
    """Raise where no file system could have that name.

    Raises:
        UsageError: it is too long, or holds a null byte.
    """
    text = os.fspath(path)
    shown = text if len(text) < _SHOWN else f"{text[:_SHOWN]}..."
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"the path '{shown}' has {len(text)} characters, too many for this file system. "
                "Use a shorter path, with names of at most 255 bytes."
            ) from error
    except ValueError as error:
        raise UsageError(
            f"the path {shown!r} is not valid: {error}. Remove from it the characters that no file "
            "name can contain, such as the null byte."
        ) from error


def read_regular(path: Path, most: int) -> bytes:
    """Return what a regular file holds, at most `most` bytes and one more.

    Whatever else has its name is not waited for: a FIFO, a device, a socket, a link.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    return b"".join(read_chunks(path, most))


def read_chunks(path: Path, most: int) -> Iterator[bytes]:
    """Give what `read_regular` returns, a chunk at a time.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    # Only looked at before: to open some devices does something.
    _check_regular(os.lstat(path), path)
    descriptor = os.open(path, _READ)
    try:
        _check_regular(os.fstat(descriptor), path)
        left = most + 1
        while left and (part := os.read(descriptor, min(left, _CHUNK))):
            yield part
            left -= len(part)
    finally:
        os.close(descriptor)


def _check_regular(about: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(f"'{path.name}' is {_kind(about.st_mode)}, not a regular file")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symlink",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, and return once it is on the disk."""
    descriptor = os.open(path, _CREATE, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where they are missing; their names are on the disk."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    sync_folder(folder.parent)


def why_unwritable(error: OSError, path: Path) -> str:
    """Return in words why a path cannot be made or written."""
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            return f"'{each}' is a symlink to '{os.readlink(each)}', which does not exist"
        if each.exists():
            if not each.is_dir():
                return f"'{each}' is not a folder"
            break
    return error.strerror or str(error)
