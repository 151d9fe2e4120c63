"""Shared memory without a name (memfd), which processes of one machine open through `/proc`.

A process opens that of another one through `/proc`. Linux frees it with the last process that uses
it, however that one ends, so nothing is left behind. Only Linux has it.
"""

import fcntl
import os
from pathlib import Path

_AT_ONCE = 64 * 2**20
"""Bytes taken in one call, which a signal would begin again."""

Address = dict[str, str | int]
"""How another process opens the memory, and knows it again; JSON."""


def this_machine() -> str:
    """Return what is equal for processes that find each other in `/proc`.

    Processes of another container are not in this one's.

    Raises:
        OSError: the system has no `/proc`.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def make_memory(name: str, size: int = 0) -> int:
    """Return a descriptor of new memory, all of it taken: later, a page that is missing kills.

    Args:
        name: for whoever lists this process's files; it finds nothing.
        size: bytes; with 0 it grows as a file does.

    Raises:
        OSError: there is not that much memory, or the system has none of this kind.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory that processes can share without a name")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for begin in range(0, size, _AT_ONCE):
            os.posix_fallocate(descriptor, begin, min(_AT_ONCE, size - begin))
        if size:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def address_of(descriptor: int) -> Address:
    """Return where other processes of this machine find the memory of a descriptor."""
    # The number that this process has in the /proc that all of them see.
    own = os.readlink("/proc/self")
    return {
        "machine": this_machine(),
        "path": f"/proc/{own}/fd/{descriptor}",
        "inode": os.fstat(descriptor).st_ino,
    }


def open_memory(address: Address, size: int) -> int | None:
    """Return a descriptor of the memory there, None if it is gone or is another machine's.

    Args:
        address: see `address_of`.
        size: bytes that it must have.

    Raises:
        OSError: it is there, and may not be opened.
    """
    if address["machine"] != this_machine():
        return None
    try:
        descriptor = os.open(str(address["path"]), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = os.fstat(descriptor)
    if (found.st_ino, found.st_size) == (address["inode"], size):
        return descriptor
    # The number of a process that has ended was given to another one.
    os.close(descriptor)
    return None
