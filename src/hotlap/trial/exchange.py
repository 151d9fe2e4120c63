"""The folder that hotlap shares with what it runs and measures: what is written there is real."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

_PREFIX = "hotlap-lab-"


def make() -> Path:
    """Return a new folder that says whose it is."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_stale() -> None:
    """Remove what a hotlap that was killed could not remove itself."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Give a new folder while entered, and remove what was left by a hotlap that was killed."""
    remove_stale()
    path = make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
