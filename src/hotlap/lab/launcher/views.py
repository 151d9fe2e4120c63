"""Copy-on-write view of all files, made of overlay mounts in a namespace of its own."""

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from kernel import (
    KEPT_FLAGS,
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_RELATIME,
    MS_REMOUNT,
    ST_RELATIME,
    check,
    libc,
    mount,
)

LEFT_ALONE = ("/proc", "/sys", "/dev")
SHARED_MEMORY = "/dev/shm"
BASE = "/sys"
"""Where the upper layers lie until every overlay holds its own; a folder that is never overlaid."""


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def subfolders(folder: str) -> Iterator[str]:
    """Give the folders directly below one, none if it cannot be read: then nobody gets at them."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and entry.path not in LEFT_ALONE:
            yield entry.path


class View:
    """The overlays that were made in this mount namespace, and what could not be overlaid.

    `points` are mount points, `own` folders to overlay for their own sake, outer ones first.
    """

    def __init__(self, points: list[str], own: list[str], in_user_namespace: bool) -> None:
        # `trusted` attributes need a real root. Only with them can a folder that the real tree
        # holds be renamed; in a user namespace rename(2) gives EXDEV for these.
        self.options = "userxattr" if in_user_namespace else "redirect_dir=on"
        self.points, self.own = points, own
        self.real: dict[str, int] = {}  # descriptors of what lies behind the paths
        self.devices: set[int] = set()  # of the overlays
        self.seen: set[str] = set()
        self.refused: dict[str, str] = {}  # why there is no overlay
        self.to_seal: list[str] = []
        # Before the first overlay: one overlay on another's folder is allowed, a third is not
        # (EINVAL), and an overlay hides what is mounted below it.
        for path in [*self.points, *self.own]:
            self._open(path)

    def _open(self, path: str) -> int | None:
        if path not in self.real:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
                os.fstatvfs(descriptor)  # refused by a FUSE mount that is another's, or is broken
                self.real[path] = descriptor
            except OSError as error:
                self.refused[path] = str(error)
        return self.real.get(path)

    def make(self) -> None:
        """Overlay everything but `/` itself, which cannot be."""
        for folder in [*subfolders("/"), *filter(os.path.isdir, [SHARED_MEMORY])]:
            self._cover(folder, hidden=False)
        self.to_seal.append("/")
        for folder in self.own:
            if folder not in self.seen and folder in self.real:
                self._overlay(folder)

    def _cover(self, path: str, *, hidden: bool) -> None:
        """Overlay `path` and all mount points below; `hidden` if an overlay lies over it."""
        descriptor = self._open(path)
        if descriptor is None or path in self.seen:
            return
        self.seen.add(path)
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        writable = not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY
        if is_folder and writable and self._overlay(path):
            return self._cover_points_below(path, hidden=True)
        descend = bool(is_folder and writable and self._points_below(path))
        if hidden or (is_folder and writable and not descend):
            mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        if writable and (hidden or not descend or path in self.points):
            self.to_seal.append(path)
        # In a user namespace nothing can be overlaid that holds a mount point: those are locked.
        for folder in subfolders(path) if descend else ():
            self._cover(folder, hidden=False)
        self._cover_points_below(path, hidden=False)

    def _points_below(self, path: str) -> list[str]:
        return [point for point in self.points if point != path and is_within(point, path)]

    def _cover_points_below(self, path: str, *, hidden: bool) -> None:
        below = self._points_below(path)
        for point in below:
            if not any(other != point and is_within(point, other) for other in below):
                self._cover(point, hidden=hidden)

    def _overlay(self, path: str) -> bool:
        descriptor = self.real[path]
        upper, work = f"{BASE}/{descriptor}u", f"{BASE}/{descriptor}w"
        info = os.fstat(descriptor)
        os.mkdir(upper)
        os.mkdir(work)
        # An owner that the user namespace does not know cannot be given to it.
        libc.chown(upper.encode(), info.st_uid, info.st_gid)
        os.chmod(upper, stat.S_IMODE(info.st_mode))
        layers = f"lowerdir=/proc/self/fd/{descriptor},upperdir={upper},workdir={work}"
        try:
            mount("overlay", path, "overlay", 0, f"{layers},{self.options}")
        except OSError as error:
            self.refused[path] = str(error)
            return False
        self.devices.add(os.stat(path).st_dev)
        return True

    def seal(self) -> list[str]:
        """Make read-only what has no overlay; return, in words, what even that was refused for."""
        unprotected = []
        for path in self.to_seal:
            try:
                flags = os.statvfs(path).f_flag
                # Flags that were set from outside are locked in a user namespace.
                kept = flags & KEPT_FLAGS | (MS_RELATIME if flags & ST_RELATIME else 0)
                mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)
            except OSError as error:
                unprotected.append(f"{path} ({error.strerror})")
        return unprotected

    def is_protected(self, path: str) -> bool:
        return os.stat(path).st_dev in self.devices


def build_view(config: dict[str, Any], in_user_namespace: bool) -> list[str]:
    """Make the view in this mount namespace; return, in words, what is not protected."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    view = View(config["points"], config["own"], in_user_namespace)
    shared = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in config["passthrough"]]
    mount("tmpfs", BASE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for number, (_, descriptor) in enumerate(shared):
        # Out of the view's reach while files are hidden, and before anything is read-only.
        os.mkdir(f"{BASE}/p{number}")
        mount(f"/proc/self/fd/{descriptor}", f"{BASE}/p{number}", None, MS_BIND | MS_REC)
    view.make()
    unprotected = view.seal()
    if not view.is_protected(config["cwd"]):
        why = [text for path, text in view.refused.items() if is_within(config["cwd"], path)]
        raise RuntimeError(f"the working folder {config['cwd']} could not be overlaid: {why[-1:]}")
    hide(config["hide"], view.is_protected)
    for number, (path, _) in enumerate(shared):
        os.makedirs(path, exist_ok=True)
        mount(f"{BASE}/p{number}", path, None, MS_BIND | MS_REC)
    check(libc.umount2(BASE.encode(), MNT_DETACH), f"umount {BASE}")
    return unprotected


def hide(paths: list[str], is_protected: Callable[[str], bool]) -> None:
    """Delete, in the view, what the trial must not see. A path may lie in another one."""
    for path in paths:
        if not os.path.lexists(path):
            continue
        if not is_protected(os.path.dirname(path)):
            raise RuntimeError(f"{path} cannot be hidden: no overlay protects the real file")
        if os.path.isdir(path) and not os.path.islink(path):
            hide([os.path.join(path, name) for name in os.listdir(path)], is_protected)
            os.rmdir(path)
        else:
            os.unlink(path)
