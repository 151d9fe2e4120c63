"""Starts one trial on a copy-on-write view of the files. Run as a script, by path; stdlib only.

Three processes: the launcher, which the caller waits for and whose group the trial is in; a
keeper, which is process 1 of the trial's PID namespace, or cleans up where the folder is copied;
and the trial. The upper layers of the overlays lie on a tmpfs that nothing but they refer to, so
when the trial's last process goes, all of it is gone.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 32, 4096, 16384, 1 << 18, 2
MS_NOATIME, MS_NODIRATIME, MS_RELATIME, ST_RELATIME = 1024, 2048, 1 << 21, 4096
KEPT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, CAP_SYS_ADMIN = 1, 24, 36, 21
LEFT_ALONE = ("/proc", "/sys", "/dev")
SHARED_MEMORY = "/dev/shm"
BASE = "/sys"
"""Where the upper layers lie until every overlay holds its own; a folder that is never overlaid."""
# What the launcher is sent, and how it tells its keeper.
FORWARDED = {signal.SIGTERM: signal.SIGRTMIN, signal.SIGINT: signal.SIGRTMIN + 1}

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Call mount(2). Raises OSError that names the target."""
    names = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    result = libc.mount(*names, ctypes.c_ulong(flags), data.encode())
    check(result, f"mount {kind or 'bind'} on {target}")


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent dies; leave at once if it has already died."""
    check(libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def enter_namespaces() -> bool:
    """Unshare; return True if a user namespace was needed for it."""
    uid, gid = os.geteuid(), os.getegid()
    # In some containers root may mount, but not make user namespaces.
    if uid == 0 and libc.unshare(CLONE_NEWNS | CLONE_NEWPID) == 0:
        return False
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID), "unshare")
    texts = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, text in texts.items():
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)
    return True


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


def tell(status: int, **values: Any) -> None:
    os.write(status, json.dumps(values).encode() + b"\n")


def failing(status: int, work: Callable[[], int]) -> NoReturn:
    """Exit with what `work` returns; whatever it raises is told to the caller."""
    code = 125
    try:
        code = work()
    except Exception as error:
        tell(status, error=str(error) or repr(error))
    os._exit(code)


def on_view(config: dict[str, Any], status: int) -> int:
    """Run the trial on the view, and return its exit code."""
    die_with(config["parent"])
    in_user_namespace = enter_namespaces()
    # Again: a change of credentials may clear it (prctl(2)). Linux 6.18 did not for this one.
    die_with(config["parent"])
    alive, ours = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(ours)
        failing(status, lambda: as_init(config, status, in_user_namespace, alive))
    os.close(alive)
    return wait_and_forward(init, config, status)


def as_init(config: dict[str, Any], status: int, in_user_namespace: bool, alive: int) -> int:
    """Process 1 of the new PID namespace: build the view, start the trial, reap, end with it."""
    check(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
    # From inside, the parent's number is always 0. It holds the other end and never writes.
    if select.select([alive], [], [], 0)[0]:
        return 1
    unprotected = build_view(config, in_user_namespace)
    # Refused in a container that masks parts of /proc: it then shows processes of the outside too.
    with contextlib.suppress(OSError):
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if config["argv"] is None:
        tell(status, unprotected=unprotected)
        return 0
    os.chdir(config["cwd"])
    child = os.fork()
    if child == 0:
        # Not a security boundary: it keeps a script that unmounts things from the real files.
        libc.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
        failing(status, lambda: execute(config["argv"]))
    # The trial's sockets must close when the trial ends, not when its init does.
    os.closerange(3, 1 << 16)
    return reap_and_forward(child, in_group=True)


def execute(argv: list[str]) -> NoReturn:
    """Become the command. Python ignores SIGPIPE, which would be inherited."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise OSError(error.errno, f"{argv[0]}: {error.strerror}") from error


def wait_for(child: int) -> int:
    while True:
        pid, code = os.wait()
        if pid == child:
            number = os.waitstatus_to_exitcode(code)
            return number if number >= 0 else 128 - number


def wait_and_forward(keeper: int, config: dict[str, Any], status: int) -> int:
    """Wait for the keeper as the launcher."""
    for number, told in FORWARDED.items():
        signal.signal(number, lambda *_, told=told: os.kill(keeper, told))
    for descriptor in (status, *config["fds"]):
        os.close(descriptor)
    return wait_for(keeper)


def reap_and_forward(child: int, *, in_group: bool) -> int:
    """Reap every process until the trial ends, and pass on what the launcher forwards."""
    # A signal to the whole group has reached the trial, and this process, before it is forwarded.
    direct: set[int] = set()

    def forward(number: int) -> None:
        if number not in direct:
            os.kill(child, number)
        direct.discard(number)

    for number, told in FORWARDED.items():
        signal.signal(told, lambda *_, number=number: forward(number))
        if in_group:
            signal.signal(number, lambda number, _: direct.add(number))
    return wait_for(child)


def on_copy(config: dict[str, Any], status: int) -> int:
    """Run the trial in a copy of the folder, and return its exit code."""
    become_reaper(config["parent"])
    group = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        os.setpgid(0, 0)  # else it would be stopped and killed with the trial
        failing(status, lambda: as_keeper(config, status, group))
    # The kernel sends it to a stopped group that is orphaned, as this one is without its keeper.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = wait_and_forward(keeper, config, status)
    clean_up(config)  # the keeper may have been killed
    return code


def become_reaper(parent: int, number: int = signal.SIGKILL) -> None:
    """Die with the parent, and get what descends from this process and loses its own parent."""
    die_with(parent, number)
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def as_keeper(config: dict[str, Any], status: int, group: int) -> int:
    """Start the trial once the caller has copied; in the end leave no process and no file."""
    signal.signal(signal.SIGTERM, lambda *_: clean_up(config) or os._exit(1))
    become_reaper(group, signal.SIGTERM)
    try:
        os.mkdir(config["copy"], 0o700)
        tell(status, ready=True)  # before the first file: the caller may be killed while it copies
        if os.read(status, 1) == b"":
            return 1
        keeper, child = os.getpid(), os.fork()
        if child == 0:
            failing(status, lambda: as_trial_in_copy(config, keeper, group))
        os.closerange(3, 1 << 16)
        return reap_and_forward(child, in_group=False)
    finally:
        clean_up(config)


def as_trial_in_copy(config: dict[str, Any], keeper: int, group: int) -> NoReturn:
    """Become the command, in the launcher's group."""
    die_with(keeper)
    os.setpgid(0, group)
    os.chdir(config["cwd"])
    execute(config["argv"])


def clean_up(config: dict[str, Any]) -> None:
    """Kill every process that descends from this one, which is their reaper; remove the copy."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for name in filter(str.isdigit, os.listdir("/proc")):
                # It may have ended since the folder was listed.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{name}/stat", "rb") as stream:
                        parent = int(stream.read().rpartition(b")")[2].split()[1])
                    if parent == os.getpid():
                        os.kill(int(name), signal.SIGKILL)
            os.wait()
    shutil.rmtree(config["copy"], ignore_errors=True)


def main() -> NoReturn:
    """Read the order from the descriptor that is named, and carry it out."""
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    order = b""
    while not order.endswith(b"\n"):
        order += os.read(status, 1 << 16) or b"\n"
    config = json.loads(order)
    failing(status, lambda: (on_copy if config["copy"] else on_view)(config, status))


if __name__ == "__main__":
    main()
