"""A real control group with a memory limit, where this machine lets one be made."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotlap.host import control_groups


class Group:
    """A group with a limit; commands are started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the group and becomes the given one."""
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", enter, str(self.folder), *command]


@contextlib.contextmanager
def group(limit: int) -> Iterator[Group]:
    """Make a group below one of this process's own; skip the test where none can be made."""
    why = "no memory control group is mounted"
    for above in control_groups.folders("memory"):
        folder = above / f"hotlap-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            why = str(error)
            continue
        try:
            _limit(above, folder, limit)
        except OSError as error:
            why = str(error)
            folder.rmdir()
            continue
        try:
            yield Group(folder)
        finally:
            _remove(folder)
        return
    pytest.skip(f"no control group with a memory limit can be made here: {why}")


def _limit(above: Path, folder: Path, limit: int) -> None:
    if (above / "cgroup.subtree_control").exists():
        (above / "cgroup.subtree_control").write_text("+memory")
        (folder / "memory.max").write_text(str(limit))
        (folder / "memory.swap.max").write_text("0")
    else:
        (folder / "memory.limit_in_bytes").write_text(str(limit))


def _remove(folder: Path) -> None:
    # What was killed leaves the group a moment later.
    deadline = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
