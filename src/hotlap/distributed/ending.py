"""Waits until gloo's threads let go of tensors, so that the process is not aborted."""

import time
from pathlib import Path

_THREAD = "pt_gloo_runloop"
_TENSORS_LET_GO_S = 0.05


def let_tensors_go() -> None:
    """Wait for the threads of a process group to let go of the tensors of their last sum.

    Whatever still holds the group, such as a sharded model, keeps its threads. To let go of a
    tensor they need the interpreter: where it ends at that moment, Python ends the thread, C++
    calls that an error, and the process is aborted ("terminate called without an active
    exception") though its work is done. Seen with torch 2.13.0 in 1 of some 15 sharded runs.
    """
    if any(_name(thread) == _THREAD for thread in Path("/proc/self/task").glob("*")):
        # Threads that wait for the interpreter have it meanwhile.
        time.sleep(_TENSORS_LET_GO_S)


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:
        # It has ended.
        return ""
