"""Descriptors of locked files, which forked children close as they begin.

The kernel's lock of a file belongs to its open description, and children share that: a worker that
outlives its process would go on to hold the lock.
"""

import os

_own: set[int] = set()


def own(descriptor: int) -> None:
    """Let children close a descriptor of this process."""
    _own.add(descriptor)


def is_own(descriptor: int) -> bool:
    """True until it is disowned, and in a child never."""
    return descriptor in _own


def disown(descriptor: int) -> None:
    """Leave a descriptor to children; to be called before it is closed."""
    _own.discard(descriptor)


def _close_all() -> None:
    while _own:
        os.close(_own.pop())


os.register_at_fork(after_in_child=_close_all)
