"""`Scratch`: starts trials on a copy-on-write view or on a copy; probes which can be had."""

import glob
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal

from hotlap.errors import ScratchError
from hotlap.lab.copying import Source, end_leftovers, new_name
from hotlap.lab.folders import mount_points, own_folders
from hotlap.lab.launch import Launch

COPY_LIMIT_BYTES = 512 * 2**20


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

    Raises:
        ScratchError: this is not Linux.
    """
    if sys.platform != "linux":
        raise ScratchError(
            f"trials need Linux, and this is {sys.platform}: the views and copies of folders in "
            "which they run are made with its system calls. Use Linux, for example in a "
            "container. `run`, `env`, and `train` with its micro-batch given do not need it."
        )
    return _probe(str((cwd or Path.cwd()).resolve()), os.geteuid())


@lru_cache(maxsize=16)
def _probe(cwd: str, uid: int) -> Protection:
    answer = _answer_to_trying(cwd, uid, network=False)
    if "error" in answer:
        return _by_copy(cwd, answer["error"])
    return Protection("overlay", tuple(answer["unprotected"]))


@lru_cache(maxsize=16)
def _why_no_network(cwd: str, uid: int) -> str | None:
    return _answer_to_trying(cwd, uid, network=True).get("error")


def _answer_to_trying(cwd: str, uid: int, *, network: bool) -> dict[str, Any]:
    """Make a view, leave it, and return what the launcher says."""
    order = _order_of_view(cwd, own_folders(uid, cwd, os.environ))
    launch = Launch({**order, "argv": None, "network": network}, {})
    answer = launch.answer()
    launch.process.wait()
    launch.end()
    if answer is None:
        return {"error": f"the launcher ended with exit code {launch.process.returncode}"}
    return answer


def _by_copy(cwd: str, reason: str) -> Protection:
    named = f"{cwd} itself, where the script or its data use its absolute path"
    shared = "ports, abstract sockets and System V shared memory"
    return Protection("copy", (f"every path outside {cwd}", named, shared), reason)


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
        in_temporary: variables of the environment that name something in the temporary folder,
            `{}` in their values: in a copy it is the trial's own.
    """

    def __init__(
        self,
        cwd: Path,
        *,
        passthrough: Sequence[Path] = (),
        hide: Sequence[str] = (),
        protection: Protection | None = None,
        copy_limit_bytes: int = COPY_LIMIT_BYTES,
        in_temporary: Mapping[str, str] | None = None,
    ) -> None:
        self.cwd = cwd.resolve()
        self.passthrough = tuple(path.resolve() for path in passthrough)
        self.hide = tuple(hide)
        self.protection = protection or probe(self.cwd)
        self.copy_limit_bytes = copy_limit_bytes
        self.in_temporary = dict(in_temporary or {})
        # A script may be named through a symbolic link to its folder.
        self._names = (str(self.cwd), str(cwd.absolute()))
        self._own: list[str] | None = None
        self._launches: list[Launch] = []

    @property
    def is_view(self) -> bool:
        """True if trials see a view of the files, False if they see a copied folder."""
        return self.protection.kind == "overlay"

    def why_no_network(self) -> str | None:
        """Return why trials cannot have a network of their own, None if they can."""
        if not self.is_view:
            return "no copy-on-write view can be made, and a separate network needs the same rights"
        return _why_no_network(str(self.cwd), os.geteuid())

    def __enter__(self) -> "Scratch":
        if not self.is_view:
            end_leftovers()
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
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        own_network: bool = False,
    ) -> "subprocess.Popen[bytes]":
        """Start a command on the view, in a session and process group of its own.

        Every process of it is killed by `os.killpg(process.pid, SIGKILL)`, and dies with the
        command and with this process; `family` stops and continues them. SIGTERM and SIGINT sent
        to the process alone reach the command. The exit code is the command's, 128 + n for
        signal n. With `own_network` it reaches nothing but itself, over a loopback of its own.

        Raises:
            ScratchError: the view could not be made, the folder is too large to be copied, or the
                command could not be started.
        """
        options = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        if self.protection.kind == "overlay":
            if self._own is None:
                self._own = own_folders(os.geteuid(), str(self.cwd), env)
            order = _order_of_view(str(self.cwd), self._own) | {
                "argv": list(argv),
                "passthrough": [str(path) for path in self.passthrough],
                "hide": self._hidden_paths(),
                "network": own_network,
            }
            launch = Launch(order, {**options, "env": dict(env)})
        else:
            launch = self._launch_in_copy(argv, {**options, "env": env})
        self._launches = [*(each for each in self._launches if not each.is_over()), launch]
        answer = launch.answer()
        if answer is not None:
            raise launch.end_with_error(answer)
        return launch.process

    def _launch_in_copy(self, argv: Sequence[str], options: Mapping[str, Any]) -> Launch:
        source = self._what_to_copy()
        size = sum(os.lstat(path).st_size for path in source.files())
        if size > self.copy_limit_bytes:
            raise ScratchError(
                f"'{self.cwd}' holds {size / 2**20:.1f} MiB, and no copy-on-write view can be made "
                f"({self.protection.reason}). Expected: at most {self.copy_limit_bytes / 2**20:.1f}"
                " MiB to copy. Start hotlap in a folder that holds the script and little else."
            )
        copy = os.path.join(os.path.realpath(tempfile.gettempdir()), new_name())
        view = os.path.join(copy, "view")
        env, temporary = options["env"], os.path.join(copy, "tmp")
        home = env.get("HOME", os.path.expanduser("~"))
        moved = {
            # Packages that are installed for the user alone are found through HOME otherwise.
            "PYTHONUSERBASE": os.path.join(home, ".local"),
            **env,
            "HOME": os.path.join(copy, "home"),
            "TMPDIR": temporary,
            **{
                name: text.format(temporary)
                for name, text in self.in_temporary.items()
                if name in env
            },
            "PWD": view,
        }
        order = {
            "argv": [source.translate_argument(part, self._names, view) for part in argv],
            "cwd": view,
            "copy": copy,
        }
        launch = Launch(order, {**options, "env": moved})
        answer = launch.answer()
        if answer is None or "error" in answer:
            raise launch.end_with_error(answer)
        try:
            source.copy(view)
            for name in ("home", "tmp"):
                os.mkdir(os.path.join(copy, name))
        except BaseException:
            launch.end()
            raise
        launch.proceed()
        return launch

    def _hidden_paths(self) -> list[str]:
        found = [glob.glob(each, root_dir=self.cwd, recursive=True) for each in self.hide]
        # Without the `/` that a pattern for folders ends with.
        return [os.path.join(self.cwd, name.rstrip("/")) for names in found for name in names]

    def _what_to_copy(self) -> Source:
        return Source(
            str(self.cwd),
            left_out=frozenset(self._hidden_paths()),
            linked=frozenset(str(path) for path in self.passthrough),
        )


def _order_of_view(cwd: str, own: list[str]) -> dict[str, Any]:
    return {"cwd": cwd, "own": own, "points": mount_points(), "passthrough": [], "hide": []}
