"""Lock on a run's folder: one run at a time saves into it; others are told which process does.

The kernel's lock on the file says, on one machine, whether the owner lives; what is written in it
says who that is, and speaks for owners on other machines, whose locks some file systems do not
show.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from pathlib import Path

from hotlap.checkpoint.files import sync_folder
from hotlap.checkpoint.owner import Owner
from hotlap.errors import UsageError
from hotlap.host.own_descriptors import disown, is_own, own

NAME = "LOCK"
_MOST_BYTES = 4096
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PATIENCE_S = 3.0
"""Until what a dead process has left behind has let go of its lock."""
_UNKNOWN = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""What a file system says that has no locks."""


class Lock:
    """The lock of a run's folder of checkpoints.

    Args:
        root: that folder.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / NAME
        self._descriptor: int | None = None
        self._pid = 0

    def take(self) -> None:
        """Take the lock, or that of a process that has ended; do nothing if it is held already.

        Raises:
            UsageError: another run has it; the message says which.
            OSError: the file cannot be made.
        """
        until = time.monotonic() + _PATIENCE_S
        while self._descriptor is None:
            descriptor = os.open(self.path, _OPEN, 0o666)
            is_ours = False
            try:
                is_ours = self._try(descriptor, until)
            finally:
                if is_ours:
                    self._descriptor, self._pid = descriptor, os.getpid()
                    own(descriptor)
                else:
                    os.close(descriptor)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        # A child that was forked has closed it, and the lock is its parent's.
        if descriptor is None or self._pid != os.getpid() or not is_own(descriptor):
            return
        # While it is held: nobody else's is deleted.
        if self._is_named(descriptor):
            with contextlib.suppress(OSError):  # it says of a dead process what is true
                os.unlink(self.path)
        disown(descriptor)
        os.close(descriptor)

    def _try(self, descriptor: int, until: float) -> bool:
        """Return whether the lock was taken; False if it is to be tried again."""
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(
                f"'{self.path}' is where the lock file of a run belongs, and it is not a regular "
                "file. Move or delete it."
            )
        is_free = self._lock(descriptor)
        owner = self._read(descriptor)
        if is_free is False:
            # A process of another container is not seen from here, dead or alive.
            if owner is not None and owner.is_visible and not owner.lives:
                if time.monotonic() > until:
                    # What holds it is a child of the dead; a new file has a lock of its own.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path)
                time.sleep(0.05)
                return False
            raise UsageError(self._taken_by(owner))
        if not self._is_named(descriptor):
            return False
        if owner is not None:
            self._check_dead(owner, is_free)
        self._write(descriptor)
        return True

    def _lock(self, descriptor: int) -> bool | None:
        """Return whether the kernel gives the lock, None where the file system has none."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _UNKNOWN:
                return None
            raise
        return True

    def _check_dead(self, owner: Owner, is_free: bool | None) -> None:
        if owner.lives:
            raise UsageError(self._taken_by(owner))
        # A machine that was started again has no process of before; a container of the same
        # machine would hold the kernel's lock.
        was_restarted = owner.host == socket.gethostname() and not owner.is_of_this_boot
        if owner.is_visible or was_restarted or (owner.is_of_this_boot and is_free):
            return
        raise UsageError(
            f"{self._taken_by(owner)} That run is on another machine or in another container, so "
            "whether it has ended cannot be checked from here. If it has ended, delete "
            f"'{self.path}' and start this run again."
        )

    def _taken_by(self, owner: Owner | None) -> str:
        who = "another run" if owner is None else f"another run ({owner})"
        return (
            f"'{self.path.parent.parent}' is in use: {who} saves into it. Wait until that run "
            "has ended, or choose another folder with --run-dir."
        )

    def _is_named(self, descriptor: int) -> bool:
        """True if the file is still the one at the path."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(descriptor)
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _read(self, descriptor: int) -> Owner | None:
        try:
            return Owner.parse(json.loads(os.pread(descriptor, _MOST_BYTES, 0)))
        except (ValueError, RecursionError):
            return None

    def _write(self, descriptor: int) -> None:
        content = json.dumps(Owner.of_this_process().to_json()).encode()
        os.ftruncate(descriptor, 0)
        if os.pwrite(descriptor, content, 0) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        sync_folder(self.path.parent)
