"""Checks the path of an exported file, and writes the file atomically."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from hotlap.checkpoint.files import check_path
from hotlap.errors import MissingFile, StorageError, UsageError


def check_free(path: Path, overwrite: bool) -> None:
    """Raise where no file can be written.

    Raises:
        UsageError: there is something already, or no file system could have that name.
        MissingFile: its folder is not there.
    """
    check_path(path)
    if path.is_symlink() and not path.exists():
        raise UsageError(
            f"'{path}' is a symlink to '{os.readlink(path)}', which does not exist. Remove the "
            "symlink, or choose another path."
        )
    if path.exists() and not path.is_file():
        raise UsageError(
            f"'{path}' exists and is not a regular file, so it is not overwritten. Choose another "
            "path."
        )
    if path.exists() and not overwrite:
        raise UsageError(
            f"'{path}' already exists. Choose another path, or pass --overwrite to replace it."
        )
    if not path.parent.is_dir():
        raise MissingFile(
            f"folder '{path.parent}' was not found. Create it, or choose a path in another folder."
        )


def write_atomically(path: Path, write: Callable[[Path], str]) -> str:
    """Write beside the path, and put it there once it is whole.

    Raises:
        StorageError: it could not be written.
    """
    with (
        _explain_failed_write(path),
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".hotlap-") as folder,
    ):
        # Of a name that no file system finds too long.
        aside = Path(folder) / f"model{path.suffix}"
        checked = write(aside)
        os.replace(aside, path)
    return checked


@contextlib.contextmanager
def _explain_failed_write(path: Path) -> Iterator[None]:
    """Say of a file that cannot be written what one can do about it."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"'{path}' could not be written: {error}. A file that existed there is unchanged. Free "
            "some space, or choose another folder."
        ) from error


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Turn what the libraries raise that write into what the system said."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        # Torch and safetensors do not say which error of the system it was.
        raise OSError(str(error).splitlines()[0]) from error
