"""A folder is removed with its owner, by the next one if need be, and never before."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hotlap.trial import exchange

OWNER = """
import sys, time
from hotlap.trial import exchange
with exchange.folder() as path:
    print(path, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_it_is_the_users_alone_and_goes_with_its_owner(tmp_path: Path) -> None:
    with exchange.folder() as path:
        assert path.parent == tmp_path and path.stat().st_mode & 0o777 == 0o700
        with exchange.folder() as other:
            assert path.is_dir() and other != path
    assert not list(tmp_path.iterdir())


def test_what_a_killed_owner_left_is_removed_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        # Not told by a process ID, which another container has not.
        with exchange.folder():
            assert theirs.is_dir()
        owner.kill()
    assert theirs.is_dir()
    with exchange.folder():
        assert not theirs.exists()


def test_a_folder_that_is_being_made_has_time_to_be_locked(tmp_path: Path) -> None:
    young = Path(tempfile.mkdtemp(prefix=exchange._PREFIX))
    with exchange.folder():
        assert young.is_dir()
    old = time.time() - 2 * exchange._YOUNG_S
    os.utime(young, (old, old))
    with exchange.folder():
        assert not young.exists()
