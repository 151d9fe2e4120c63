"""Linux system calls of the launcher: mounts, namespaces, parent-death signals."""

import ctypes
import fcntl
import os
import signal
import socket
import struct

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
CLONE_NEWIPC, CLONE_NEWNET = 0x8000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 32, 4096, 16384, 1 << 18, 2
MS_NOATIME, MS_NODIRATIME, MS_RELATIME, ST_RELATIME = 1024, 2048, 1 << 21, 4096
KEPT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, CAP_SYS_ADMIN = 1, 24, 36, 21

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


def enter_namespaces(*, network: bool) -> bool:
    """Unshare; return True if a user namespace was needed for it.

    Args:
        network: a network of its own as well, of which only the loopback is there.
    """
    uid, gid = os.geteuid(), os.getegid()
    # What is shared by System V's means outlives its processes, in the namespace.
    wanted = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (CLONE_NEWNET if network else 0)
    # In some containers root may mount, but not make user namespaces.
    if uid == 0 and libc.unshare(wanted) == 0:
        return False
    check(libc.unshare(CLONE_NEWUSER | wanted), "unshare")
    texts = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, text in texts.items():
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)
    return True


def bring_up_loopback() -> None:
    """Let processes of a network of its own reach each other: it begins with all links down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("16sH14x", b"lo", 0)
        name, flags = struct.unpack("16sH14x", fcntl.ioctl(asked, SIOCGIFFLAGS, request))
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | IFF_UP))
