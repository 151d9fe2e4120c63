"""A worker process of a DataLoader was killed, has crashed, or does not answer.

What happened  `Killed` is the system's doing, where memory runs out: each worker has its own copy
               of what the data set holds in Python objects. `Segmentation fault` is a library's
               (image decoders, HDF5 files that were opened before the workers were started). One
               that exits raised an error that could not be sent, or was ended by the data set's own
               code. One that times out waits: for a lock that was held when it was forked, or for a
               slow disk.
Look at        the same loop with `num_workers=0`: it has the worker's own traceback, if there is
               one. `dmesg` names who was killed for memory.
What to do     fewer workers; keep arrays instead of lists of Python objects; open files within the
               worker, at the first `__getitem__`; `cv2.setNumThreads(0)`;
               `multiprocessing_context="spawn"`, where a library does not survive a fork.
"""

import re
import signal

from hotlap.failures.death import Death
from hotlap.failures.record import Failure

_SIGNALS = {
    "Killed": "The system has killed it, most often because memory ran out.",
    "Segmentation fault": "A library that it uses has crashed.",
    "Aborted": "A library that it uses has ended it.",
    "Terminated": "Somebody has ended it: a job's time limit, or another process.",
}


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    killed = re.search(r"killed by signal: ([A-Z][a-z]+(?: fault)?)", text)
    if killed is not None:
        return [_SIGNALS[killed[1]]] if killed[1] in _SIGNALS else []
    if "_try_get_data" in text:
        return ["It ended while a batch that it had sent was read from its memory."]
    waited = re.search(r"timed out after ([\d.]+) seconds", text)
    if waited is not None:
        return [f"No batch came for {waited[1]} s, the DataLoader's `timeout`."]
    return []


def locate(death: Death) -> list[str]:
    """Say how a worker ended, where the loader found it ended before the signal was handled."""
    said: list[str] = []
    for call in death.calls:
        for worker in call.values.get("failed_workers", ()):
            code = getattr(worker, "exitcode", None)
            if type(code) is int:
                said.append(_in_words(code))
    return list(dict.fromkeys(said))


def _in_words(code: int) -> str:
    """Say what an exit code of `multiprocessing.Process` means: a signal's is negative."""
    if code >= 0:
        return f"It exited with code {code}."
    # macOS adds the number: `Killed: 9`.
    name = (signal.strsignal(-code) or f"signal {-code}").partition(":")[0]
    return _SIGNALS.get(name, f"It was ended by a signal: {name}.")


FAILURE = Failure(
    name="worker_died",
    patterns=(
        r"DataLoader worker \(pid \d+\) is killed by signal: (?!Bus)[^\n]*",
        r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        r"DataLoader timed out after [\d.]+ seconds",
        r"Pin memory thread exited unexpectedly",
        # A batch lies in the worker's memory, which is asked of it when the batch is read. Not in
        # another thread: that of pinned memory asks in vain whenever the script itself has ended.
        r", in _try_get_data\b[\s\S]{,6000}?"
        r"\b(?P<said>(?:Connection\w*|EOF|FileNotFound)Error\b[^\n]*)",
    ),
    explain=explain,
    locate=locate,
)
