"""Tries something in a forked child: what it opens or draws there, this process never has."""

import gc
import os
import pickle
import select
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_WAIT_S = 60.0
_Answer = TypeVar("_Answer")
_MOST_WORDS = 60_000
"""Bytes that a pipe holds, so that the child never waits."""


def can_fork() -> bool:
    """True where a child may be forked beside running threads, as a DataLoader does by default."""
    return sys.platform == "linux"


def in_child(work: Callable[[], _Answer]) -> _Answer | str:
    """Return what `work` returns in a forked child: words, a number, or None.

    An exception of it, or a child that dies or takes longer than a minute, is returned in words.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of every fork beside threads; a DataLoader's workers are forked, too.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(work, reading, writing)
    os.close(writing)
    try:
        answer = _read_all(reading, time.monotonic() + _WAIT_S)
    finally:
        os.close(reading)
        if not _has_ended(child):
            os.kill(child, 9)
            os.waitpid(child, 0)
    return (
        pickle.loads(answer)
        if answer
        else ("the child process in which it was tried died, or took longer than a minute")
    )


def _answer(work: Callable[[], Any], reading: int, writing: int) -> None:
    try:
        os.close(reading)
        # What the script's objects do as they go, this process does.
        gc.disable()
        # The threads that torch computes with are not there after a fork.
        torch.set_num_threads(1)
        try:
            words = work()
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        os.write(writing, pickle.dumps(words)[:_MOST_WORDS])
    finally:
        # Nothing of the script's may run at the child's end.
        os._exit(0)


def _read_all(reading: int, until: float) -> bytes:
    found = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        part = os.read(reading, 65536)
        if not part:
            return found
        found += part
    return b""


def _has_ended(child: int) -> bool:
    for _ in range(20):
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return True
        time.sleep(0.01)
    return False
