"""A view of the files that trials may write to as they like: nothing reaches the real ones."""

import contextlib
import glob
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal

from hotlap.errors import ScratchError

COPY_LIMIT_BYTES = 512 * 2**20
COPY_PREFIX = "hotlap-copy-"
_LAUNCHER = Path(__file__).with_name("launcher.py")
_LEFT_ALONE = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"
_CLEAN_UP_S = 5.0
"""Seconds that the keeper of a copied folder gets to remove it, after its trial was killed."""
_SCAN_DEPTH = 3
_SCAN_LIMIT = 3000
"""Folders that are looked at for one's own; some 10 us each."""


@dataclass(frozen=True)
class Protection:
    """How the files are protected from trials, and what is not."""

    kind: Literal["overlay", "copy"]
    """`overlay`: a copy-on-write view of everything; `copy`: a copy of the script's folder."""
    unprotected: tuple[str, ...] = ()
    """What a trial could still change, in words."""
    reason: str | None = None
    """Why no view can be had, for `copy`."""


def probe(cwd: Path | None = None) -> Protection:
    """Find out what protection this machine allows, by really making a view and leaving it.

    The answer is kept for the life of this process, for each user and working folder.

    Args:
        cwd: working folder of the trials, which a view must cover; this process's if None.
    """
    return _probe(str((cwd or Path.cwd()).resolve()), os.geteuid())


@lru_cache(maxsize=16)
def _probe(cwd: str, uid: int) -> Protection:
    if sys.platform != "linux":
        return _by_copy(cwd, f"views of the files need Linux, this is {sys.platform}")
    launch = _Launch({**_order_of_view(cwd, _own(uid, cwd, os.environ)), "argv": None}, {})
    answer = launch.answer()
    launch.process.wait()
    launch.end()
    if answer is None or "error" in answer:
        code = launch.process.returncode
        return _by_copy(cwd, answer["error"] if answer else f"the launcher ended with {code}")
    return Protection("overlay", tuple(answer["unprotected"]))


def _by_copy(cwd: str, reason: str) -> Protection:
    named = f"{cwd} itself, where the script or its data name it in full"
    return Protection("copy", (f"every path outside {cwd}", named), reason)


class Scratch:
    """Where trials of a script are started. A context manager; leaving it ends what still runs.

    On a view a trial may write anywhere: to `/dev/shm` too, but not directly into `/`, and not to
    file systems that refuse an overlay, which are read-only for it. What it writes is held in
    memory and is gone with it. It sees only its own processes.

    In a copy it runs with `HOME` and `TMPDIR` in the copy as well, and paths into the folder are
    translated in its arguments. Virtual environments and shared folders are not copied but linked.

    Args:
        cwd: working folder of the trials.
        passthrough: folders that trials share with everybody: what they write there is real.
        hide: patterns, relative to `cwd`, of files that trials do not see.
        protection: found out if None.
        copy_limit_bytes: largest folder that is copied where no view can be had.
    """

    def __init__(
        self,
        cwd: Path,
        *,
        passthrough: Sequence[Path] = (),
        hide: Sequence[str] = (),
        protection: Protection | None = None,
        copy_limit_bytes: int = COPY_LIMIT_BYTES,
    ) -> None:
        self.cwd = cwd.resolve()
        self.passthrough = tuple(path.resolve() for path in passthrough)
        self.hide = tuple(hide)
        self.protection = protection or probe(self.cwd)
        self.copy_limit_bytes = copy_limit_bytes
        # A script may be named through a symbolic link to its folder.
        self._names = (str(self.cwd), str(cwd.absolute()))
        self._own: list[str] | None = None
        self._launches: list[_Launch] = []

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *exc: object) -> None:
        for launch in self._launches:
            launch.end()

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int | IO[Any] | None,
        stderr: int | IO[Any] | None,
        pass_fds: Sequence[int] = (),
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
    ) -> "subprocess.Popen[bytes]":
        """Start a command on the view, in a session and process group of its own.

        Every process of it is stopped, continued or killed by `os.killpg(process.pid, ...)`, and
        dies with the command, with this process, and with the thread that calls this (Linux ties
        a process to the thread that started it). SIGTERM and SIGINT sent to the process alone
        reach the command. The exit code is the command's, 128 + n for signal n.

        Raises:
            ScratchError: the view could not be made, the folder is too large to be copied, or the
                command could not be started.
        """
        options = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        if self.protection.kind == "overlay":
            if self._own is None:
                self._own = _own(os.geteuid(), str(self.cwd), env)
            order = _order_of_view(str(self.cwd), self._own) | {
                "argv": list(argv),
                "passthrough": [str(path) for path in self.passthrough],
                "hide": self._hidden(),
            }
            launch = _Launch(order, {**options, "env": dict(env)}, pass_fds)
        else:
            launch = self._launch_in_copy(argv, {**options, "env": env}, pass_fds)
        self._launches = [*(each for each in self._launches if not each.is_over()), launch]
        answer = launch.answer()
        if answer is not None:
            raise launch.failed(answer)
        return launch.process

    def _launch_in_copy(
        self, argv: Sequence[str], options: Mapping[str, Any], pass_fds: Sequence[int]
    ) -> "_Launch":
        source = self._what_to_copy()
        size = sum(os.lstat(path).st_size for path in source.files())
        if size > self.copy_limit_bytes:
            raise ScratchError(
                f"'{self.cwd}' holds {size / 2**20:.1f} MiB, and no copy-on-write view can be had "
                f"({self.protection.reason}). Allowed: up to {self.copy_limit_bytes / 2**20:.1f} "
                "MiB to copy. Start hotlap in a folder that holds the script and little else."
            )
        name = f"{COPY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        copy = os.path.join(os.path.realpath(tempfile.gettempdir()), name)
        view = os.path.join(copy, "view")
        env = options["env"]
        home = env.get("HOME", os.path.expanduser("~"))
        moved = {
            # Packages that are installed for the user alone are found through HOME otherwise.
            "PYTHONUSERBASE": os.path.join(home, ".local"),
            **env,
            "HOME": os.path.join(copy, "home"),
            "TMPDIR": os.path.join(copy, "tmp"),
            "PWD": view,
        }
        order = {
            "argv": [source.moved(part, self._names, view) for part in argv],
            "cwd": view,
            "copy": copy,
        }
        launch = _Launch(order, {**options, "env": moved}, pass_fds)
        answer = launch.answer()
        if answer is None or "error" in answer:
            raise launch.failed(answer)
        try:
            source.copy(view)
            for name in ("home", "tmp"):
                os.mkdir(os.path.join(copy, name))
        except BaseException:
            launch.end()
            raise
        launch.proceed()
        return launch

    def _hidden(self) -> list[str]:
        found = [glob.glob(each, root_dir=self.cwd, recursive=True) for each in self.hide]
        # Without the `/` that a pattern for folders ends with.
        return [os.path.join(self.cwd, name.rstrip("/")) for names in found for name in names]

    def _what_to_copy(self) -> "_Source":
        return _Source(
            str(self.cwd),
            left_out=frozenset(self._hidden()),
            linked=frozenset(str(path) for path in self.passthrough),
        )


@dataclass(frozen=True)
class _Source:
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
                    os.symlink(self.moved(os.path.realpath(entry), (self.folder,), target), path)
                elif entry.is_dir():
                    if self._links_to(entry.path):
                        os.symlink(entry.path, path)
                    else:
                        folders.append((entry.path, path))
                elif entry.is_file():
                    shutil.copy2(entry, path)
            shutil.copymode(folder, to)

    def moved(self, part: str, names: Sequence[str], target: str) -> str:
        """Translate an argument, `PATH` or `--option=PATH`, if its path is one that is copied."""
        option, equals, path = part.rpartition("=") if part.startswith("-") else ("", "", part)
        for name in names:
            if _is_within(path, name):
                real = self.folder + path[len(name) :]
                above = [real, *(str(parent) for parent in Path(real).parents)]
                if not any(self._links_to(each) for each in above if _is_within(each, self.folder)):
                    return option + equals + target + path[len(name) :]
        return part


class _Launch:
    """A launcher's process, and the socket on which it is told what to do and says what failed."""

    def __init__(
        self, order: Mapping[str, Any], options: Mapping[str, Any], pass_fds: Sequence[int] = ()
    ) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen[bytes](
                [sys.executable, "-I", "-S", str(_LAUNCHER), str(theirs.fileno())],
                pass_fds=(theirs.fileno(), *pass_fds),
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **options},
            )
        self.order = {"copy": None, "parent": os.getpid(), "fds": list(pass_fds), **order}
        with contextlib.suppress(BrokenPipeError):  # then it has no answer either
            self._ours.sendall(json.dumps(self.order).encode() + b"\n")

    def answer(self) -> dict[str, Any] | None:
        """Return what it says next, None once the command runs or all is over."""
        line = b""
        while not line.endswith(b"\n"):
            part = self._ours.recv(1 << 16)
            if not part:
                self._ours.close()
                return None
            line += part
        return json.loads(line)

    def proceed(self) -> None:
        self._ours.sendall(b"\n")

    def failed(self, answer: Mapping[str, Any] | None) -> ScratchError:
        """End it, and return the error that says why."""
        self.end()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        said = answer["error"] if answer else f"the launcher ended with {self.process.returncode}"
        return ScratchError(f"the trial could not be started: {said}")

    def is_over(self) -> bool:
        return self.process.poll() is not None and not os.path.exists(self.order["copy"] or "")

    def end(self) -> None:
        """Kill every process, and leave no copied folder."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._ours.close()
        deadline = time.monotonic() + _CLEAN_UP_S
        while not self.is_over() and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.order["copy"]:
            shutil.rmtree(self.order["copy"], ignore_errors=True)


def _order_of_view(cwd: str, own: list[str]) -> dict[str, Any]:
    return {"cwd": cwd, "own": own, "points": _mount_points(), "passthrough": [], "hide": []}


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mount_points() -> list[str]:
    """Return the mount points that a trial might write to, outer ones first."""
    found = set()
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        # Spaces and the like are written as three octal digits.
        raw = line.split()[4].decode("unicode_escape").encode("latin-1")
        found.add(os.fsdecode(raw))
    kept = {path for path in found if not any(_is_within(path, left) for left in _LEFT_ALONE)}
    below_shm = {path for path in found if _is_within(path, _SHARED_MEMORY)}
    return sorted((kept | below_shm) - {"/"}, key=lambda path: (len(path), path))


def _own(uid: int, cwd: str, env: Mapping[str, str]) -> list[str]:
    """Return the folders that need an overlay of their own, outer ones first; none for root.

    In a user namespace only one's own files have an owner. To write below a folder of another's,
    overlayfs would have to copy that folder up with its owner, and gives EOVERFLOW.
    """
    if uid == 0:
        return []
    found = set(_writable_below_others(uid))
    for path in (cwd, env.get("HOME", ""), env.get("TMPDIR", "/tmp")):
        real = os.path.realpath(path) if path else "/"
        while real != "/" and os.access(real, os.W_OK):
            above = os.path.dirname(real)
            # As far up as everything on the way can be copied up.
            if not (_is_mapped(os.stat(real)) and os.access(above, os.W_OK)):
                found.add(real)
                break
            real = above
    return sorted(found, key=lambda path: (len(path), path))


@lru_cache(maxsize=2)
def _writable_below_others(uid: int) -> tuple[str, ...]:
    """Return the topmost folders that a user may write to, as far as a quick look finds them."""
    del uid  # whoever this process is; it is there for the cache
    queue, looked_at, found = [("/", -1)], 0, []
    while queue and looked_at < _SCAN_LIMIT:
        folder, depth = queue.pop(0)
        looked_at += 1
        is_writable = os.access(folder, os.W_OK)
        if is_writable:
            found.append(folder)
        if depth == _SCAN_DEPTH or not os.access(folder, os.R_OK):
            continue
        with os.scandir(folder) as entries:
            folders = [each for each in entries if each.is_dir(follow_symlinks=False)]
        queue += [
            (each.path, depth + 1)
            for each in folders
            # One's own folder in a folder that has an overlay is copied up like any other.
            if each.path not in _LEFT_ALONE and not (is_writable and _is_mapped(each.stat()))
        ]
    return tuple(found)


def _is_mapped(info: os.stat_result) -> bool:
    return (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())
