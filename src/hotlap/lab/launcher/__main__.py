"""Forks a trial and its keeper, in a view or a copy; forwards signals, reaps. Stdlib only.

It is run as a folder, by path.

Three processes: the launcher, which the caller waits for and whose group the trial is in; a
keeper, which is process 1 of the trial's PID namespace, or cleans up where the folder is copied;
and the trial. The upper layers of the overlays lie on a tmpfs that nothing but they refer to, so
when the trial's last process goes, all of it is gone.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from kernel import (
    CAP_SYS_ADMIN,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    PR_CAPBSET_DROP,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    bring_up_loopback,
    check,
    die_with,
    enter_namespaces,
    libc,
    mount,
)
from views import build_view

# What the launcher is sent, and how it tells its keeper.
FORWARDED = {signal.SIGTERM: signal.SIGRTMIN, signal.SIGINT: signal.SIGRTMIN + 1}
_REACHES_GROUP_S = 0.02
"""Seconds within which a signal to a group reaches its last process, on cores that others share."""


def tell(status: int, **values: Any) -> None:
    os.write(status, json.dumps(values).encode() + b"\n")


def exit_with_result(status: int, work: Callable[[], int]) -> NoReturn:
    """Exit with what `work` returns; whatever it raises is told to the caller."""
    code = 125
    try:
        code = work()
    except Exception as error:
        tell(status, error=str(error) or repr(error))
    os._exit(code)


def run_on_view(config: dict[str, Any], status: int) -> int:
    """Run the trial on the view, and return its exit code."""
    die_with(config["parent"])
    in_user_namespace = enter_namespaces(network=config["network"])
    if config["network"]:
        bring_up_loopback()
    # Again: a change of credentials may clear it (prctl(2)). Linux 6.18 did not for this one.
    die_with(config["parent"])
    alive, ours = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(ours)
        exit_with_result(status, lambda: run_as_init(config, status, in_user_namespace, alive))
    os.close(alive)
    return wait_and_forward(init, status)


def run_as_init(config: dict[str, Any], status: int, in_user_namespace: bool, alive: int) -> int:
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
        exit_with_result(status, lambda: execute(config["argv"]))
    # Whatever was inherited must close when the trial ends, not when its init does.
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


def wait_and_forward(keeper: int, status: int) -> int:
    """Wait for the keeper as the launcher."""
    for number, told in FORWARDED.items():
        signal.signal(number, lambda *_, told=told: os.kill(keeper, told))
    os.close(status)
    return wait_for(keeper)


def reap_and_forward(child: int, *, in_group: bool) -> int:
    """Reap every process until the trial ends, and pass on what the launcher forwards."""
    # A signal to the whole group reaches the trial, and this process, too.
    direct: set[int] = set()

    def forward(number: int) -> None:
        if in_group and number not in direct:
            time.sleep(_REACHES_GROUP_S)
        if number not in direct:
            os.kill(child, number)
        direct.discard(number)

    for number, told in FORWARDED.items():
        signal.signal(told, lambda *_, number=number: forward(number))
        if in_group:
            signal.signal(number, lambda number, _: direct.add(number))
    return wait_for(child)


def run_on_copy(config: dict[str, Any], status: int) -> int:
    """Run the trial in a copy of the folder, and return its exit code."""
    become_reaper(config["parent"])
    group = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        os.setpgid(0, 0)  # else it would be stopped and killed with the trial
        exit_with_result(status, lambda: run_as_keeper(config, status, group))
    # The kernel sends it to a stopped group that is orphaned, as this one is without its keeper.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = wait_and_forward(keeper, status)
    clean_up(config)  # the keeper may have been killed
    return code


def become_reaper(parent: int, number: int = signal.SIGKILL) -> None:
    """Die with the parent, and get what descends from this process and loses its own parent."""
    die_with(parent, number)
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def run_as_keeper(config: dict[str, Any], status: int, group: int) -> int:
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
            exit_with_result(status, lambda: as_trial_in_copy(config, keeper, group))
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
    exit_with_result(
        status, lambda: (run_on_copy if config["copy"] else run_on_view)(config, status)
    )


if __name__ == "__main__":
    main()
