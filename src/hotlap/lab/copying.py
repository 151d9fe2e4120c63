"""Copies a script's folder for a trial, where no copy-on-write view is possible."""

import contextlib
import glob
import hashlib
import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.lab.folders import is_within

COPY_PREFIX = "hotlap-copy-"


def new_name() -> str:
    """Return a name for a copied folder, which says which process of which machine it belongs to.

    Several machines or containers may share the temporary folder.
    """
    return f"{COPY_PREFIX}{os.getpid()}-{_place()}-{secrets.token_hex(4)}"


def _place() -> str:
    """Return what stands for this machine, and for the process IDs that it is one of."""
    place = f"{socket.gethostname()} {os.stat('/proc/self/ns/pid').st_ino}"
    return hashlib.blake2b(place.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Source:
    """A folder that is copied, with full paths of what is left out and what is only linked to."""

    folder: str
    left_out: frozenset[str]
    linked: frozenset[str]

    def _links_to(self, path: str) -> bool:
        return path in self.linked or os.path.exists(os.path.join(path, "pyvenv.cfg"))

    def _entries(self, folder: str) -> Iterator["os.DirEntry[str]"]:
        for entry in os.scandir(folder):
            # The temporary folder may lie below the one that is copied.
            if entry.path not in self.left_out and not entry.name.startswith(COPY_PREFIX):
                yield entry

    def files(self) -> Iterator[str]:
        """Give the full paths of the files that are copied."""
        folders = [self.folder]
        while folders:
            for entry in self._entries(folders.pop()):
                if entry.is_file(follow_symlinks=False):
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False) and not self._links_to(entry.path):
                    folders.append(entry.path)

    def copy(self, target: str) -> None:
        """Copy; symbolic links into the folder point into the copy, others to the real file."""
        folders = [(self.folder, target)]
        while folders:
            folder, to = folders.pop()
            os.mkdir(to)
            for entry in self._entries(folder):
                path = os.path.join(to, entry.name)
                if entry.is_symlink():
                    os.symlink(
                        self.translate_argument(os.path.realpath(entry), (self.folder,), target),
                        path,
                    )
                elif entry.is_dir():
                    if self._links_to(entry.path):
                        os.symlink(entry.path, path)
                    else:
                        folders.append((entry.path, path))
                elif entry.is_file():
                    shutil.copy2(entry, path)
            # What cannot be written to could neither be filled nor removed.
            os.chmod(to, stat.S_IMODE(os.stat(folder).st_mode) | stat.S_IRWXU)

    def translate_argument(self, part: str, names: Sequence[str], target: str) -> str:
        """Translate an argument, `PATH` or `--option=PATH`, if its path is one that is copied."""
        option, equals, path = part.rpartition("=") if part.startswith("-") else ("", "", part)
        for name in names:
            if is_within(path, name):
                real = self.folder + path[len(name) :]
                above = [real, *(str(parent) for parent in Path(real).parents)]
                if not any(self._links_to(each) for each in above if is_within(each, self.folder)):
                    return option + equals + target + path[len(name) :]
        return part


def end_leftovers() -> None:
    """Kill what is left of trials in copied folders whose hotlap is gone, and remove the folders.

    Where hotlap, the launcher and the keeper were all killed at once, the trial itself dies with
    them, but not what it had started; a stopped process would wait for ever.
    """
    prefix = os.path.join(os.path.realpath(tempfile.gettempdir()), COPY_PREFIX)
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # It may have ended since the folder was listed, or be another user's.
        with contextlib.suppress(OSError):
            copy = _copy_of(name, prefix)
            if copy is not None and _is_abandoned(copy):
                os.kill(int(name), signal.SIGKILL)
    for folder in glob.glob(f"{glob.escape(prefix)}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _copy_of(pid: str, prefix: str) -> str | None:
    """Return the copied folder that a process belongs to, None if it belongs to none."""
    # Process IDs of another namespace are not those in the folder's name.
    if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
        return None
    with open(f"/proc/{pid}/environ", "rb") as stream:
        for word in stream.read().split(b"\0"):
            if word.startswith(b"TMPDIR="):
                folder = os.fsdecode(word[7:])
                return os.path.dirname(folder) if folder.startswith(prefix) else None
    return None


def _is_abandoned(copy: str) -> bool:
    """True if it belongs to a process of this machine, and of this container, that has ended."""
    pid, _, rest = os.path.basename(copy).removeprefix(COPY_PREFIX).partition("-")
    is_ours = pid.isdecimal() and rest.partition("-")[0] == _place()
    return is_ours and not os.path.exists(f"/proc/{pid}")
