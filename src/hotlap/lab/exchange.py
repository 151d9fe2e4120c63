"""The folder that trials share with hotlap: what they write there is real."""

import os
import shutil
import tempfile
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
