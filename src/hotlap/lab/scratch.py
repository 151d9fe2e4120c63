"""A view of the files that trials may write to as they like: nothing reaches the real ones."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal

from hotlap.errors import ScratchError

_LAUNCHER = Path(__file__).with_name("launcher.py")
COPY_LIMIT_BYTES = 512 * 2**20
COPY_PREFIX = "hotlap-copy-"


@dataclass(frozen=True)
class Protection:
    """How the files are protected from trials, and what is not."""

    kind: Literal["overlay", "copy"]
    """`overlay`: a copy-on-write view of everything; `copy`: a copy of the script's folder."""
    unprotected: tuple[str, ...] = ()
    """What a trial could still change, in words."""
    reason: str | None = None
    """Why no view can be had, for `copy`."""


def probe(cwd: Path) -> Protection:
    """Find out what protection this machine allows, by really making a view and leaving it."""
    return _probe(str(cwd), os.getuid())


@lru_cache(maxsize=16)
def _probe(cwd: str, uid: int) -> Protection:
    del uid
    if sys.platform != "linux":
        return _by_copy(cwd, f"views of the files need Linux, this is {sys.platform}")
    process, answer = _launch(_config(cwd), env=os.environ, stdout=None, stderr=None)
    process.wait()
    if answer is None or "error" in answer:
        reason = answer["error"] if answer else f"the launcher ended with {process.returncode}"
        return _by_copy(cwd, reason)
    return Protection("overlay", tuple(answer["unprotected"]))


def _by_copy(cwd: str, reason: str) -> Protection:
    return Protection("copy", (f"every path outside {cwd}",), reason)


def _config(cwd: str, **values: Any) -> dict[str, Any]:
    own = [cwd, os.path.expanduser("~"), tempfile.gettempdir()]
    return {
        "argv": None,
        "cwd": cwd,
        "passthrough": [],
        "hide": [],
        "own": own,
        "copy": None,
        "parent": os.getpid(),
        "fds": [],
        **values,
    }


def _launch(
    config: Mapping[str, Any], *, pass_fds: Sequence[int] = (), **options: Any
) -> tuple["subprocess.Popen[bytes]", dict[str, Any] | None]:
    """Start the launcher; return it, and what it said before the trial began, None if nothing."""
    reader, writer = os.pipe()
    try:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(config), str(writer)],
            stdin=subprocess.DEVNULL,
            pass_fds=(writer, *pass_fds),
            start_new_session=True,
            **options,
        )
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    return process, json.loads(said) if said else None


class Scratch:
    """Where trials of a script are started.

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
        self.passthrough = tuple(passthrough)
        self.hide = tuple(hide)
        self.protection = protection or probe(self.cwd)
        self.copy_limit_bytes = copy_limit_bytes
        self._copies: list[str] = []

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *exc: object) -> None:
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int | IO[Any] | None,
        stderr: int | IO[Any] | None,
        pass_fds: Sequence[int] = (),
    ) -> "subprocess.Popen[bytes]":
        """Start a command on the view, in a session and process group of its own.

        Every process of it is stopped, continued or killed by `os.killpg(process.pid, ...)`, and
        dies when this process dies. The exit code is the command's, 128 + n for signal n.

        Raises:
            ScratchError: the view could not be made, or the command could not be started.
        """
        fds = list(pass_fds)
        if self.protection.kind == "overlay":
            config = _config(
                str(self.cwd),
                argv=list(argv),
                passthrough=[str(path) for path in self.passthrough],
                hide=list(self.hide),
                fds=fds,
            )
        else:
            copy = self._copy()
            folder = os.path.join(copy, "view")
            moved = [_moved(part, str(self.cwd), folder) for part in argv]
            config = _config(folder, argv=moved, copy=copy, fds=fds)
        process, answer = _launch(
            config, pass_fds=pass_fds, env=dict(env), stdout=stdout, stderr=stderr
        )
        if answer is not None:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            raise ScratchError(f"the trial could not be started: {answer['error']}")
        return process

    def _copy(self) -> str:
        size = sum(file.lstat().st_size for file in self.cwd.rglob("*") if file.is_file())
        if size > self.copy_limit_bytes:
            raise ScratchError(
                f"'{self.cwd}' holds {size / 2**20:.0f} MiB, and no copy-on-write view can be had "
                f"({self.protection.reason}). Allowed: up to {self.copy_limit_bytes / 2**20:.0f} "
                "MiB to copy. Start hotlap in a folder that holds the script and little else."
            )
        copy = tempfile.mkdtemp(prefix=COPY_PREFIX)
        self._copies.append(copy)
        hidden = [str(self.cwd / pattern) for pattern in self.hide]

        def left_out(folder: str, names: list[str]) -> set[str]:
            paths = {name: Path(folder, name) for name in names}
            # The temporary folder may lie below the one that is copied.
            return {
                name
                for name, path in paths.items()
                if name.startswith(COPY_PREFIX) or any(path.match(h) for h in hidden)
            }

        shutil.copytree(self.cwd, os.path.join(copy, "view"), symlinks=True, ignore=left_out)
        return copy


def _moved(part: str, old: str, new: str) -> str:
    return new + part[len(old) :] if part == old or part.startswith(old + os.sep) else part
