"""Starts one trial on a copy-on-write view of the files. Run as a script, by path; stdlib only.

Namespaces for mounts and processes (for users too, unless root starts it), one overlay on each
directory that holds no mount point, their upper layers on a tmpfs that nothing but these overlays
refers to. When the trial's last process goes, all of it is gone.
"""

import contextlib
import ctypes
import glob
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 32, 4096, 16384, 1 << 18, 2
PR_SET_PDEATHSIG = 1
LEFT_ALONE = ("/proc", "/sys", "/dev")
BASE = "/sys"
"""Where the upper layers lie until every overlay holds its own; a folder that is never overlaid."""
_SCAN_DEPTH = 3
_SCAN_LIMIT = 5000

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Call mount(2); raise OSError with what was to be mounted."""
    result = libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(data),
    )
    check(result, f"mount {kind or 'bind'} on {target}")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    check(libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl")


def enter_namespaces() -> bool:
    """Unshare; return True if a user namespace was needed for it."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and libc.unshare(CLONE_NEWNS | CLONE_NEWPID) == 0:
        return False
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)
    return True


def mount_points() -> set[str]:
    """Return every mount point that this process sees."""
    found = set()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            found.add(line.split()[4].encode().decode("unicode_escape"))
    return found


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def folders_to_cover(points: set[str]) -> list[str]:
    """Return the folders to overlay: as high up as no mount point lies below."""
    return list(_below("/", points))


def _below(folder: str, points: set[str]) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = os.path.join(folder, entry.name)
        if path in LEFT_ALONE or entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
            continue
        if any(is_within(point, path) and point != path for point in points):
            yield from _below(path, points)
        else:
            yield path


def own_folders(covered: list[str], extra: list[str]) -> list[str]:
    """Return the topmost folders that this user may write in, below folders that are not theirs.

    In a user namespace only one's own files have an owner. To write below a folder of another's,
    overlayfs would have to copy that folder up with its owner, and gives EOVERFLOW.
    """
    uid = os.getuid()
    found: list[str] = []
    queue = [(folder, 0) for folder in covered]
    looked_at = 0
    while queue and looked_at < _SCAN_LIMIT:
        folder, depth = queue.pop(0)
        looked_at += 1
        if _is_own(folder, uid):
            found.append(folder)
        elif depth < _SCAN_DEPTH:
            with contextlib.suppress(OSError):
                queue += [
                    (entry.path, depth + 1)
                    for entry in os.scandir(folder)
                    if entry.is_dir(follow_symlinks=False)
                ]
    for path in map(os.path.realpath, extra):
        top = _topmost_own(path, uid)
        # The folder itself as well: what lies between may belong to a group that is not mapped.
        found += [folder for folder in (top, path) if folder is not None and _is_own(folder, uid)]
    return sorted(set(found) - set(covered), key=len)


def _is_own(folder: str, uid: int) -> bool:
    try:
        info = os.stat(folder)
    except OSError:
        return False
    return info.st_uid == uid or bool(info.st_mode & stat.S_IWOTH)


def _topmost_own(path: str, uid: int) -> str | None:
    top = None
    while path != "/":
        if _is_own(path, uid):
            top = path
        path = os.path.dirname(path)
    return top


def cover(folders: list[str], in_user_namespace: bool) -> list[str]:
    """Overlay the folders, outer ones first; return, in words, those where it was refused."""
    # The real folders, opened before the first overlay: one overlay on another's folder is allowed,
    # a third is not (EINVAL).
    real = [(folder, os.open(folder, os.O_PATH | os.O_DIRECTORY)) for folder in folders]
    mount("tmpfs", BASE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    option = ",userxattr" if in_user_namespace else ""
    refused = []
    for folder, descriptor in real:
        upper, work = f"{BASE}/{descriptor}u", f"{BASE}/{descriptor}w"
        os.mkdir(upper)
        os.mkdir(work)
        try:
            info = os.fstat(descriptor)
            with contextlib.suppress(OSError):
                os.chown(upper, info.st_uid, info.st_gid)
            os.chmod(upper, stat.S_IMODE(info.st_mode))
            data = f"lowerdir=/proc/self/fd/{descriptor},upperdir={upper},workdir={work}{option}"
            mount("overlay", folder, "overlay", 0, data)
        except OSError as error:
            refused.append(f"{folder} ({error.strerror})")
        os.close(descriptor)
    check(libc.umount2(BASE.encode(), MNT_DETACH), f"umount {BASE}")
    return refused


def build_view(config: dict[str, Any], in_user_namespace: bool) -> list[str]:
    """Make the view in this mount namespace; return, in words, what is not protected."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    kept = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in config["passthrough"]]
    refused = cover([*config["covered"], *config["owned"]], in_user_namespace)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for path, descriptor in kept:
        mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        os.close(descriptor)
    # What lies directly in `/`, and between mount points, has no overlay: nobody may write there.
    with contextlib.suppress(OSError):
        mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    return refused


def hide(patterns: list[str], cwd: str) -> None:
    """Delete, in the view, what the trial must not see."""
    for pattern in patterns:
        for name in glob.glob(pattern, root_dir=cwd, recursive=True):
            path = os.path.join(cwd, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)


def report(status: int, **values: Any) -> None:
    os.write(status, json.dumps(values).encode())


def as_init(config: dict[str, Any], status: int, in_user_namespace: bool, alive: int) -> NoReturn:
    """Process 1 of the new PID namespace: build the view, start the trial, reap, end with it."""
    die_with_parent()
    # The parent may have died before: it holds the other end of this pipe and never writes.
    os.set_blocking(alive, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(alive, 1) == b"":
            os._exit(1)
    os.close(alive)
    try:
        refused = build_view(config, in_user_namespace)
        # Without it the trial only sees its processes under other numbers.
        with contextlib.suppress(OSError):
            mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        os.chdir(config["cwd"])
        if any(is_within(config["cwd"], line.rsplit(" (", 1)[0]) for line in refused):
            raise OSError(0, f"the working folder could not be protected: {refused}")
        hide(config["hide"], config["cwd"])
    except OSError as error:
        report(status, error=str(error.strerror or error))
        os._exit(125)
    if config["argv"] is None:
        report(status, unprotected=refused)
        os._exit(0)
    child = os.fork()
    if child == 0:
        execute(config["argv"], status)
    os.close(status)
    _close_all_but_standard()
    os._exit(_reap_until(child))


def _close_all_but_standard() -> None:
    # The trial's socket must close when the trial ends, not when its init does.
    os.closerange(3, 4096)


def execute(argv: list[str], status: int) -> NoReturn:
    """Become the trial; say on `status` why, if that cannot be."""
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        report(status, error=f"{argv[0]}: {error.strerror}")
    os._exit(125)


def _reap_until(child: int) -> int:
    while True:
        pid, code = os.wait()
        if pid == child:
            number = os.waitstatus_to_exitcode(code)
            return number if number >= 0 else 128 - number


def in_view(config: dict[str, Any], status: int) -> NoReturn:
    """Start the trial on the view and wait for it."""
    die_with_parent()
    if os.getppid() != config["parent"]:
        os._exit(1)
    # Before the namespaces: in them everything of another user's seems to be nobody's.
    config["covered"] = folders_to_cover({path for path in mount_points() if path != "/"})
    config["owned"] = own_folders(config["covered"], config["own"]) if os.getuid() else []
    try:
        in_user_namespace = enter_namespaces()
    except OSError as error:
        report(status, error=str(error.strerror or error))
        os._exit(125)
    alive, ours = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(ours)
        as_init(config, status, in_user_namespace, alive)
    os.close(status)
    os.close(alive)
    for descriptor in config["fds"]:
        os.close(descriptor)
    os._exit(_reap_until(init))


def on_copy(config: dict[str, Any], status: int) -> NoReturn:
    """Start the trial in a copied folder, and remove that if the controller dies."""
    child = os.fork()
    if child == 0:
        die_with_parent()
        os.chdir(config["cwd"])
        execute(config["argv"], status)
    os.close(status)
    for descriptor in config["fds"]:
        os.close(descriptor)

    def clean_up(number: int, frame: object) -> None:
        del number, frame
        for pid in _others_of_group():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(config["copy"], ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, clean_up)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != config["parent"]:
        clean_up(0, None)
    os._exit(_reap_until(child))


def _others_of_group() -> list[int]:
    group, found = os.getpgid(0), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
    return found


def main() -> None:
    """Read the configuration and the descriptor to report on, and never return."""
    config = json.loads(sys.argv[1])
    status = int(sys.argv[2])
    os.set_inheritable(status, False)
    if config["copy"] is not None:
        on_copy(config, status)
    in_view(config, status)


if __name__ == "__main__":
    main()
